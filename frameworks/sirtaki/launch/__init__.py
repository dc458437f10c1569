"""The launcher: `sirtakirun -np N python train.py`, also `python -m sirtaki.launch`.

`command` reads the command line and prepares a job; `job` runs it through the MPI's mpiexec; `worker` runs beside each
rank. `sirtaki.starters` knows the ways to start ranks. A worker imports only `channel`, `spec`, `worker`,
`sirtaki.starters` and `sirtaki.host.processes`. These use the standard library alone and run without site-packages, so
that a rank starts fast.
"""
