"""Why a job ended: the failure cause, as a rank or the launcher recorded it, in words and as an exit code."""

import signal
import time
from dataclasses import dataclass
from typing import Any

_FAILED = 1
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGBUS: " (/dev/shm or a mapped file's disk full?); MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS=8 makes MPICH "
    "take less",
}
_WAITS_FOR_TRACEBACK = 5  # times at most, if a rank ends by an exception; once for other causes
_LONGEST = 1000  # characters of the last line's text; the traceback above it is complete


@dataclass
class Failure:
    """The failure cause. rank, host: the failed rank. kind, text, time, site, witness: as in sirtaki._core.Cause.

    code: of the rank's exit, or minus a signal's number; None while unknown. announced_code: the exit code that the
    rank announced. trace: a Python traceback, or "". aborted: mpiexec was ending the job already, as after MPI_Abort;
    then its exit code may be the one that the rank asked for.
    """

    rank: int
    host: str
    kind: str
    text: str
    time: float
    site: str = ""
    witness: int = -1
    code: int | None = None
    announced_code: int | None = None
    trace: str = ""
    aborted: bool = False

    def exit_code(self) -> int:
        code = self.code if self.code else self.announced_code
        return shell_code(code) if code else _FAILED

    def to_fields(self) -> dict[str, Any]:
        """The fields that are sent to the ranks."""
        return {name: getattr(self, name) for name in ("rank", "host", "kind", "text", "time", "site")}

    def details(self) -> str:
        """The traceback, or a text that is too long for one line."""
        return self.trace or (self.text if "\n" in self.text else "")

    def reporter(self) -> int:
        """The rank that wrote the details."""
        return self.witness if self.witness >= 0 else self.rank

    def add(self, other: "Failure") -> None:
        """Adds another rank's information about the same cause."""
        if (other.rank, other.time) == (self.rank, self.time):
            self.trace = self.trace or other.trace
            self.announced_code = self.announced_code or other.announced_code

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        place = f"{self.site}, " if self.site else ""
        what = "was missing" if self.kind == "passed limit" else "failed"
        return f"rank {self.rank} on host {self.host} {what} first: {self.first_line()} ({place}{when})"

    def first_line(self) -> str:
        first = self.text.partition("\n")[0]
        return first if len(first) <= _LONGEST else first[: _LONGEST - 3] + "..."


class FirstFailure:
    """The first failure cause of a job, None so far; and what the ranks report about it."""

    def __init__(self) -> None:
        self.cause: Failure | None = None
        self._reporters: set[int] = set()  # ranks whose programs have sent a cause before their end
        self._waited = 0

    def on_report(self, rank: int, cause: Failure, code: int) -> None:
        """A rank has sent a cause. code: of its exit; 0: the program goes on, and its exit code may say more."""
        if code:
            self._reporters.add(rank)
        if self.cause is not None:
            self.cause.add(cause)

    def on_exit(self, cause: Failure) -> None:
        """A program has ended by itself. cause: as its exit code alone gives it."""
        first = self.cause
        if first is None:
            return
        if first.rank == cause.rank and first.code is None:
            first.code = cause.code
            if first.kind == "lost connection" and cause.code:  # another rank noticed the end before it was reported
                first.kind, first.text = cause.kind, cause.text
        # A rank called sys.exit() without giving a cause. Errors of other ranks that miss it follow from that exit.
        if cause.code and cause.rank not in self._reporters and first.kind == "refused negotiation":
            cause.trace, cause.witness = first.trace, first.witness
            self.cause = cause

    def waits_for_traceback(self) -> bool:
        """Whether the job should go on for a moment, because a rank has not yet sent its traceback."""
        if self.cause is None or self.cause.witness < 0 or self.cause.trace:
            return False
        self._waited += 1
        return self._waited <= (_WAITS_FOR_TRACEBACK if self.cause.kind == "exception" else 1)


def of_exit(rank: int, host: str, code: int, aborted: bool = False) -> Failure:
    """For a program that ended without a report. code: as in Failure; 0 means that it ended too early."""
    if code > 0:
        kind, text = "early exit", f"exit code {code}"
    elif code == 0:
        kind, text = "early exit", "left early: exit code 0 without shutdown()"
    else:
        kind = "killed" if -code == signal.SIGKILL else "signal"
        hint = _HINTS.get(-code, "")
        text = f"killed by signal {-code}, {_name(-code)}{hint}"
    return Failure(rank, host, kind, text, time.time(), code=code, aborted=aborted)


def of_loss(rank: int, host: str, why: str) -> Failure:
    """For a supervisor that is no longer reachable. why: the connection's error, or ""."""
    text = f"the connection to that host is lost: {why}" if why else "its supervisor process is gone"
    return Failure(rank, host, "lost connection", text, time.time(), code=-signal.SIGKILL)


def of_message(rank: int, host: str, message: dict[str, Any]) -> Failure:
    """For a cause that a rank has recorded. rank, host: of the rank that sent it."""
    return Failure(
        message.get("rank", rank),
        message.get("host", host),
        message["kind"],
        message["text"],
        message["time"],
        message.get("site", ""),
        witness=message.get("witness", -1),
        announced_code=message["code"] if message.get("rank", rank) == rank else None,
        trace=message.get("trace", ""),
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def shell_code(code: int) -> int:
    """An exit code as a shell gives it: 128 + n for a process that signal n ended."""
    return code if code >= 0 else 128 - code
