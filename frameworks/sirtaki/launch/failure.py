"""How the first rank that failed did so, in an exit code and in words."""

import signal
from dataclasses import dataclass


@dataclass
class Failure:
    """The first rank that failed. code: exit code, or minus a signal's number; None when its worker vanished.

    aborted: mpiexec was ending the job already, as after MPI_Abort; then its exit code may be what the rank asked for.
    lost: why the connection to it ended, if by an error.
    """

    rank: int
    host: str
    code: int | None
    aborted: bool = False
    lost: str = ""

    def exit_code(self) -> int:
        return 128 + signal.SIGKILL if self.code is None else shell_code(self.code)

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} failed first: {self._how()}"

    def _how(self) -> str:
        if self.lost:
            return f"the connection to that host is lost: {self.lost}"
        if self.code is None:
            return "the process that watches it is gone"
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "unknown"
        hint = " (out of memory?)" if -self.code == signal.SIGKILL else ""
        return f"killed by signal {-self.code}, {name}{hint}"


def shell_code(code: int) -> int:
    """An exit code as a shell gives it: 128 + n for a process that signal n ended."""
    return code if code >= 0 else 128 - code
