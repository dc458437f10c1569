"""The last lines of a job: why it ended, or where its time went; and its exit code."""

import os
import signal
from dataclasses import dataclass, field
from typing import Any

from sirtaki.job.launcher.failure import Failure
from sirtaki.job.launcher.mpiexec import Mpiexec
from sirtaki.job.launcher.screen import Screen
from sirtaki.job.launcher.workers import Workers
from sirtaki.job.remote.remote_hosts import Arrivals
from sirtaki.starters import Starter
from sirtaki.timing.text import summary_line

_FAILED = 1


@dataclass
class Ending:
    """How a job ends. asked_by: the signal that asked the launcher to end, else 0. warned_by: the first one that was
    passed on to programs that handle it, else 0. sent: the signal that the workers got, 0 while the job goes on. late:
    ranks did not arrive in time. unreached: because hosts were not reached. abandoned: mpiexec has ended, but not its
    ranks. given_up: processes that do not end are left alone. to_resume: ranks that have saved their work and ask for a
    new start of the job.
    """

    asked_by: int = 0
    warned_by: int = 0
    sent: int = 0
    late: bool = False
    unreached: bool = False
    abandoned: bool = False
    given_up: bool = False
    to_resume: set[int] = field(default_factory=set)


class LastLines:
    """verbose: also prints mpiexec's words where a rank's failure explains the end better. records: a folder in which
    the ranks of a failed job may have left their last records.
    """

    def __init__(
        self,
        screen: Screen,
        starter: Starter,
        mpiexec: Mpiexec,
        workers: Workers,
        arrivals: Arrivals | None,
        verbose: bool,
        records: str = "",
    ) -> None:
        self._screen = screen
        self._records = records
        self._starter = starter
        self._mpiexec = mpiexec
        self._workers = workers
        self._arrivals = arrivals
        self._verbose = verbose
        self._times: dict[int, dict[str, Any]] = {}  # by rank: where the time of its steps went

    def add_times(self, rank: int, report: dict[str, Any]) -> None:
        self._times[rank] = report

    def show(self, cause: Failure | None, ending: Ending) -> int:
        """Prints how the job ended; the summary if it succeeded. Returns the exit code."""
        code = self._mpiexec.exit_code()
        if cause is not None:
            return self._show_failure(cause, code, ending)
        if ending.to_resume:
            self._show_times()
            number = ending.asked_by or ending.warned_by
            after = f" after {signal.Signals(number).name}" if number else ""
            self._screen.note(f"the job has stopped{after}, to be started again (exit code {os.EX_TEMPFAIL})")
            return os.EX_TEMPFAIL
        if ending.asked_by:
            return self._show_signal(ending.asked_by)
        self.show_words(cause, ending)
        if ending.unreached and self._arrivals is not None:
            for line in self._arrivals.lines():
                self._screen.note(line)
            return _FAILED
        if ending.late:
            return code or _FAILED
        return self._show_end(code)

    def show_words(self, cause: Failure | None, ending: Ending) -> None:
        """Prints mpiexec's output, unless a rank's failure explains the end better."""
        unexplained = cause is None or cause.kind == "lost connection"
        if self._verbose or (not ending.unreached and unexplained):
            self._mpiexec.show_words()
        else:
            self._mpiexec.forget_words()

    def _show_failure(self, cause: Failure, code: int, ending: Ending) -> int:
        if cause.aborted and code not in self._starter.codes_of_killed_ranks and not self._mpiexec.terminated:
            cause.code = code
        self.show_words(cause, ending)
        self._screen.show_for_rank(cause.reporter(), cause.details())
        if os.path.isdir(self._records) and os.listdir(self._records):
            self._screen.note(f"the last records of each rank: {self._records}")
        self._screen.note(str(cause))
        return cause.exit_code()

    def _show_signal(self, number: int) -> int:
        broken = self._screen.broken() if number == signal.SIGPIPE else None
        if broken is not None and not isinstance(broken, BrokenPipeError):
            self._screen.note(f"the job was ended because its output cannot be written: {broken.strerror}")
            return _FAILED
        if number != signal.SIGPIPE:
            self._screen.note(f"ended by {signal.Signals(number).name}; all ranks have ended")
        return 128 + number

    def _show_end(self, code: int) -> int:
        arrived, ranks = len(self._workers.arrived), self._workers.ranks
        called = self._starter.called
        if code:
            self._screen.note(f"{called} ended the job with exit code {code}")
        elif arrived < ranks:
            started = f"has started {arrived} of {ranks} ranks"
            self._screen.note(f"{called} ended with exit code 0, but {started}: do --mpi-args give another number?")
            return _FAILED
        else:
            self._show_times()
        return code

    def _show_times(self) -> None:
        if self._times:
            self._screen.note(summary_line.line([report for _, report in sorted(self._times.items())]))
