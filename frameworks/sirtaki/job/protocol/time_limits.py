"""The time limits of a job's launcher, agents and supervisors, in seconds, in one table, because some must be longer
than others: tests/python/test_time_limits.py checks that order. The engine's are in collectives/base/time_limits.h.
"""

# ---- defaults of options ----

# For a program to save its work, from the request to end to SIGKILL; as Slurm (KillWait) and Kubernetes give.
GRACE = 30.0
# Silence after which another host counts as lost. In an elastic job an error costs only a change of the ranks.
LOST_AFTER = 30.0
LOST_AFTER_IF_ELASTIC = 10.0

# ---- a supervisor, beside each rank ----

# Before a process is asked to end. After MPI_Abort of this rank, the program needs them to exit with its own code. And
# a scheduler's signal to all processes may reach a script, or the supervisor, before it reaches the others.
BEFORE_ASKING = 0.5
# After the end of the rank's process, for the program to end too and report more.
WAIT_FOR_PROGRAM = 0.5
# For a program to end after it left the job normally; its exit code may be the cause.
LEAVE_BY_ITSELF = 1.5
# For the rank to send its status.
STATUS_OF_RANK = 3.0
# A failed rank stays so long: otherwise mpiexec would end the others before they receive the cause.
LINGER = 4.0
# For processes that the program left running at its end; and after they are killed, until they are left alone.
LEFTOVERS = 2.5
AFTER_KILL = 3.0

# ---- the launcher ----

# For ranks to outlive mpiexec.
ORPHANED = 0.5
# For the other ranks, after a failure, to receive the cause and to report how they end.
CONSEQUENCES = 1.0
# For the supervisors to report which ranks are stopped.
STOPPED_RANKS = 1.0
# For supervisors after the grace that they give.
AFTER_GRACE = 1.5
# For mpiexec to end after its ranks, before it is asked to.
TIDY_UP = 1.5
# Until a message says that ranks still have time to end.
REMIND = 2.0
# For other hosts to answer after one was not reached, so that the message names all.
OTHER_HOSTS = 3.0
# For the status of all ranks.
STATUS_OF_ALL = 4.0

# ---- the launcher of an elastic job ----

# For a process that has reported its failure to end.
END_BY_ITSELF = 1.0
# Beyond a process's time to end, until its supervisor counts as stopped.
UNANSWERED = 3.0
# Until what is left of a job that is over is ended.
TIDY_UP_IF_ELASTIC = 3.0
