"""The launcher: `sirtakirun -np N python train.py`, also `python -m sirtaki.launch`.

`command` reads the command line and prepares a job; `job` watches it through the MPI's mpiexec; `worker` runs beside
each rank. `sirtaki.starters` knows the ways in which ranks are started. What a worker loads (`channel`, `spec`,
`worker`, `sirtaki.starters`, `sirtaki.host.processes`) uses the standard library alone and is started without
site-packages, so that a rank's start costs little.
"""
