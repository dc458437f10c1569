"""The launcher: `sirtakirun -np N python train.py`, also `python -m sirtaki.launch`.

`command` prepares a job from what `command_line` has read; `job` runs it through the MPI's mpiexec; `remote` reaches
other hosts; `worker` runs beside each rank; `protocol` connects them. `sirtaki.starters` knows the ways to start ranks.
A worker imports only `protocol`, `worker`, `sirtaki.starters` and `sirtaki.host`. These use the standard library alone
and run without site-packages, so that a rank starts fast.
"""
