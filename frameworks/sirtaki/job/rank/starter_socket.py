"""Before MPI starts: makes sure that this process has the socket by which MPI finds the other ranks.

Another program, such as `conda run`, may start a rank's program and close all descriptors that it does not know. MPI
would then write its first message into any file that now has this number, even a file of the user's.
"""

from __future__ import annotations

import os

from sirtaki import starters
from sirtaki.job.rank import supervisor_link
from sirtaki.starters import inherited_socket

_NOT_INHERITED = (
    *("SIRTAKI_SUPERVISOR", "SIRTAKI_SIZE", "SIRTAKI_RANK_PROCESS", starters.STARTED_AS),
    *(f"SIRTAKI_WORKER_{name}" for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "JOB", "ADDRESS")),
)


def leave_outer_job() -> None:
    """For an mpiexec called inside a rank: it starts its own job, whose ranks inherit that rank's variables."""
    noted, own = os.environ.get(starters.STARTED_AS, ""), starters.started_as()
    if noted and own and noted != own:
        for name in _NOT_INHERITED:
            os.environ.pop(name, None)


def restore() -> None:
    """Gets the socket again from the supervisor beside this rank. RuntimeError if there is no supervisor."""
    variable, descriptor = starters.descriptor()
    if not variable or inherited_socket.peer(descriptor) is not None:
        return
    given = supervisor_link.take_starter_socket()
    if given is None:
        raise RuntimeError(
            f"MPI finds the other ranks by descriptor {descriptor} ({variable}), which "
            f"{inherited_socket.described(descriptor)} in process {os.getpid()}. A program between mpiexec and this "
            "one, such as `conda run` or subprocess.run(), has closed it; nothing has been written. Start the ranks "
            "with sirtakirun, which keeps it; or let that program keep it: subprocess.run(..., close_fds=False), exec "
            "in a shell script, `conda activate` before mpiexec in place of `conda run`."
        )
    os.environ[variable] = str(given)
