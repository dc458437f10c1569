"""The launcher's side of a running job: mpiexec, workers, output, status, and why the job ended."""
