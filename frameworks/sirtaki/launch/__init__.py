"""The launcher: `sirtakirun -np N python train.py`, also `python -m sirtaki.launch`.

`command` reads the command line and prepares a job; `job` watches it through the MPI's mpiexec; `worker` runs beside
each rank. The modules that a worker loads (channel, processes, spec, worker) use the standard library alone and are
started without site-packages, so that a rank's start costs little.
"""
