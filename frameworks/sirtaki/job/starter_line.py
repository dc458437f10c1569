"""Before MPI starts: this process has the socket by which MPI finds the other ranks.

A rank's program may be started by another one, as by `conda run`, that closes all descriptors which it does not know.
MPI would then write its first words into whatever has the number now, be it a file of the user's.
"""

from __future__ import annotations

import os

from sirtaki import starters
from sirtaki.job import supervisor_link
from sirtaki.starters import line

_NOT_INHERITED = ("SIRTAKI_SUPERVISOR", "SIRTAKI_SIZE", "SIRTAKI_RANK_PROCESS", starters.STARTED_AS)


def leave_outer_job() -> None:
    """An mpiexec that a rank has called starts a job of its own, whose ranks inherit the variables of that rank."""
    noted, own = os.environ.get(starters.STARTED_AS, ""), starters.started_as()
    if noted and own and noted != own:
        for name in _NOT_INHERITED:
            os.environ.pop(name, None)


def restore() -> None:
    """Gets the socket again from sirtakirun's process beside this rank. RuntimeError if that is not there."""
    variable, descriptor = starters.descriptor()
    if not variable or line.peer(descriptor) is not None:
        return
    given = supervisor_link.take_starter_line()
    if given is None:
        raise RuntimeError(
            f"MPI finds the other ranks by descriptor {descriptor} ({variable}), which {line.described(descriptor)} in "
            f"process {os.getpid()}. A program between mpiexec and this one, such as `conda run` or subprocess.run(), "
            f"has closed it; nothing has been written. Start the ranks with sirtakirun, which keeps it; or let that "
            f"program keep it: subprocess.run(..., close_fds=False), exec in a shell script, `conda activate` before "
            f"mpiexec in place of `conda run`."
        )
    os.environ[variable] = str(given)
