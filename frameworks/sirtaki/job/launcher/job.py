"""One running job: mpiexec, the workers that report to this process, and the end of the job.

One thread does everything, in `Job.run`. Sockets, pipes and signals wake it.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sirtaki.host import processes
from sirtaki.host.signals import PASSED_ON
from sirtaki.host.timers import NEVER, Timers
from sirtaki.job.launcher import failure
from sirtaki.job.launcher.failure import Failure, FirstFailure
from sirtaki.job.launcher.last_lines import Ending, LastLines
from sirtaki.job.launcher.mpiexec import Mpiexec
from sirtaki.job.launcher.screen import Screen
from sirtaki.job.launcher.starting import Starting, names
from sirtaki.job.launcher.status import Status
from sirtaki.job.launcher.tables import Tables
from sirtaki.job.launcher.workers import Worker, Workers
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.time_limits import AFTER_GRACE, CONSEQUENCES, ORPHANED, OTHER_HOSTS, REMIND, TIDY_UP
from sirtaki.job.remote.remote_hosts import Arrivals
from sirtaki.starters import Starter

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOO_MUCH_WAITING = 1 << 20  # bytes not yet read from our output; beyond that the ranks wait


@dataclass
class Limits:
    """Seconds. start: until all ranks have arrived. grace: between the request to end and SIGKILL; the workers apply
    it. lost_after: silence after which another host counts as lost, 0 for never.
    """

    start: float
    grace: float
    lost_after: float = 0


class Job:
    """listeners: sockets that workers connect to. token: secret for workers that connect by TCP. starter: starts the
    ranks. start: makes what calls it. arrivals: which other hosts are reached, None if unknown. title: the job in one
    line. records: as in LastLines.
    """

    def __init__(
        self,
        ranks: int,
        listeners: Sequence[socket.socket],
        token: bytes,
        screen: Screen,
        *,
        starter: Starter,
        limits: Limits,
        verbose: bool,
        start: Callable[[selectors.BaseSelector, Callable[[bytes], None], bool], Mpiexec] = Mpiexec,
        arrivals: Arrivals | None = None,
        title: str = "a job",
        records: str = "",
    ) -> None:
        self._screen = screen
        self._limits = limits
        self._selector = selectors.PollSelector()
        self._timers = Timers()
        self._mpiexec = start(self._selector, screen.note_raw, verbose)
        self._workers = Workers(
            self._selector,
            listeners,
            token,
            on_output=screen.feed,
            on_arrival=self._on_arrival,
            on_exit=self._on_exit,
            on_loss=self._on_loss,
            on_host=self._on_host,
            ranks=ranks,
            lost_after=limits.lost_after,
            on_joined=self._on_joined,
            on_over=self._on_over,
            on_cause=self._on_cause,
            on_status=lambda worker, text: self.status.on_answer(worker, text),
            on_times=lambda worker, report: self._last_lines.add_times(worker.rank, report),
            on_numbers=lambda worker, text: self.status.on_answer(worker, text, channel.NUMBERS),
            on_unhandled=self._on_unhandled,
            on_warned=self._on_warned,
            on_table=self._on_table,
        )
        self.status = Status(self._selector, self._workers, title, ranks)
        self._starting = Starting(ranks)
        self._tables = Tables()
        self._arrivals = arrivals
        self._failure = FirstFailure()
        self._ending = Ending()
        self._last_lines = LastLines(screen, starter, self._mpiexec, self._workers, arrivals, verbose, records)
        self._passed_on: set[int] = set()  # signals for which no rank has yet reported a missing handler
        self._handlers: dict[int, Any] = {}  # before this job
        self._received: set[int] = set()

    def run(self, command: Sequence[str], environ: dict[str, str], started: Callable[[], None]) -> int:
        """Starts the command and runs until no process of the job lives. Returns the exit code. Raises OSError.

        started: called when the command runs. An error that it raises ends the job.
        """
        processes.become_subreaper()
        wake = self._watch_signals()
        self._timers.at(time.monotonic() + self._limits.start, self._on_late_start)
        self._mpiexec.start(command, environ)
        try:
            started()
            self._on_started()
            while not self._gone():
                self._wait()
        finally:
            self._mpiexec.kill()
            processes.kill_descendants(os.getpid(), processes.reap_orphans)
        if not self._all_ended_well():
            self._ending.to_resume.clear()
        code = self._last_lines.show(self._failure.cause, self._ending)
        self._deliver_output()
        self._selector.close()
        self._unwatch_signals(wake)
        return code

    def _all_ended_well(self) -> bool:
        return self.status.all_ended_well()

    def _on_started(self) -> None:
        """The command runs."""

    def failure(self, code: int) -> str:
        """After run(): what failed, in words; "" if the job succeeded or was asked to end."""
        if code in (0, os.EX_TEMPFAIL) or self._ending.asked_by or self._received.intersection(_ENDING):
            return ""
        cause = self._failure.cause
        if cause is None:
            return "ranks did not start" if self._ending.late else f"exit code {code}"
        return f"rank {cause.rank} failed ({cause.first_line()})"

    def was_up(self) -> bool:
        """Whether all ranks have completed init() at least once."""
        return self._starting.was_up

    def _watch_signals(self) -> socket.socket:
        receive, self._wake = socket.socketpair()
        receive.setblocking(False)
        self._wake.setblocking(False)
        for number in (*_ENDING, signal.SIGCHLD, *PASSED_ON):
            if signal.getsignal(number) != signal.SIG_IGN:  # keeps the effect of nohup
                self._handlers[number] = signal.signal(number, lambda number, frame: self._received.add(number))
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(receive, selectors.EVENT_READ, self._on_signal)
        return receive

    def _unwatch_signals(self, wake: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for end in (wake, self._wake):
            end.close()

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._watch_output()
        self._select(min(self._timers.next(), self._starting.due, self._mpiexec.show_at, self.status.due()))
        self.status.look()
        if self._screen.broken() and not self._ending.sent:
            self._ending.asked_by = signal.SIGPIPE
            self._end(signal.SIGTERM)
        now = time.monotonic()
        if not self._mpiexec.alive():
            if not self._ending.abandoned and not self._timers.waits(self._on_abandoned):
                self._timers.at(now + ORPHANED, self._on_abandoned)
        elif self._is_left_alone() and not self._timers.waits(self._mpiexec.terminate):
            self._timers.at(now + TIDY_UP, self._mpiexec.terminate)
            self._timers.at(max(self._timers.time_of(self._give_up), now + 2 * TIDY_UP), self._give_up)
        if now >= self._mpiexec.show_at:
            self._last_lines.show_words(self._failure.cause, self._ending)
        if now >= self._starting.due:
            self._on_late_init()
        self._timers.run(now)

    def _select(self, until: float) -> None:
        timeout = None if until == NEVER else max(0.0, until - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)

    def _is_left_alone(self) -> bool:
        """Whether mpiexec should end by itself now: its ranks have ended."""
        return bool(self._ending.sent) and not self._workers and not self._mpiexec.terminated

    def _gone(self) -> bool:
        """Whether all processes of the job have ended, or the remaining ones do not react."""
        if self._ending.given_up:
            return True
        if self._mpiexec.alive() or self._workers:
            return False
        return self._mpiexec.silent() or self._ending.abandoned

    def _watch_output(self) -> None:
        """While a reader of our output is slow: waits for it and lets the ranks wait."""
        for sink in self._screen.sinks():
            registered = sink.descriptor in self._selector.get_map()
            if sink.waiting and not registered:
                self._selector.register(sink.descriptor, selectors.EVENT_WRITE, self._on_writable)
            elif registered and not sink.waiting:
                self._selector.unregister(sink.descriptor)
        self._workers.receive_messages(bool(self._ending.sent) or self._screen.waiting() <= _TOO_MUCH_WAITING)

    def _on_writable(self, descriptor: int, events: int) -> None:
        self._screen.write()

    def _deliver_output(self) -> None:
        """Waits for a slow reader of our output without limit; after Ctrl-C or a similar signal, only a second."""
        until = NEVER
        while self._screen.waiting() and time.monotonic() < until:
            if self._ending.asked_by and until == NEVER:
                until = time.monotonic() + 1
            self._watch_output()
            self._select(until)

    # ---- messages ------------------------------------------------------------------------------------------------

    def _on_signal(self, wake: socket.socket, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(1024):
                if number in _ENDING:
                    self._on_end_request(number)
                elif number in PASSED_ON:
                    self._passed_on.add(number)
                    self._ending.warned_by = self._ending.warned_by or number
                    if not self._workers.pass_on(number):
                        self._on_unhandled(None, number)

    def _on_unhandled(self, worker: Worker | None, number: int) -> None:
        """A rank has no handler for a passed-on signal. The first such answer counts: for SIGUSR1 prints the job
        status.
        """
        if number not in self._passed_on:
            return
        self._passed_on.remove(number)
        if number == signal.SIGUSR1:
            self.status.ask(lambda text: self._screen.note_raw(f"sirtakirun: {text}".encode(errors="replace")))
        else:
            who = "no rank has started yet" if worker is None else f"the program of rank {worker.rank} has no handler"
            self._screen.note(f"{signal.Signals(number).name} has no effect: {who}")

    def _on_warned(self, worker: Worker, number: int) -> None:
        """A rank stops because of this signal. The others may not have received it."""
        if not self._ending.warned_by and not self._ending.sent:
            self._ending.warned_by = number
            self._workers.pass_on(number)

    def _on_end_request(self, number: int) -> None:
        if self._ending.asked_by:  # the second request: kill now
            self._timers.at(0.0, self._kill)
            return
        self._ending.asked_by = number
        self._end(number)
        self._timers.at(time.monotonic() + REMIND, self._remind)

    def _remind(self) -> None:
        if self._workers and self._timers.waits(self._kill):
            name = signal.Signals(self._ending.asked_by).name
            self._screen.note(
                f"the ranks have {self._limits.grace:g} s from {name} to end (--grace-seconds); "
                f"a second {name} kills them"
            )

    def _on_arrival(self, worker: Worker) -> None:
        if len(self._workers.arrived) == self._workers.ranks:
            self._timers.cancel(self._on_late_start)
        if self._ending.sent:
            self._workers.end_program(worker, self._ending.sent)

    def _on_exit(self, worker: Worker, message: dict[str, Any]) -> None:
        """ended (in the message): the program was asked to end, so its exit code is a consequence and no cause."""
        code = message["code"]
        self.status.on_end(worker.rank, code)
        if code == os.EX_TEMPFAIL and not message["lost"]:
            self._ending.to_resume.add(worker.rank)
        elif not message["ended"]:
            cause = failure.of_exit(worker.rank, worker.host, code, message["asked"])
            self._failure.on_exit(cause)
            if code or message["lost"]:
                self._fail(cause)
            else:
                self._starting.on_end(worker.rank)
        if self._failure.cause is not None and self._workers.all_ended():
            self._end(signal.SIGTERM)

    def _on_loss(self, worker: Worker) -> None:
        self._screen.finish(worker.rank)
        self.status.on_end(worker.rank, None)
        if not worker.reported:
            self._fail(failure.of_loss(worker.rank, worker.host, worker.lost))

    def _on_cause(self, worker: Worker, message: dict[str, Any]) -> None:
        cause = failure.of_message(worker.rank, worker.host, message)
        self._failure.on_report(worker.rank, cause, message["code"])
        self._fail(cause)

    def _on_joined(self, worker: Worker, limit: float) -> None:
        self._starting.on_call(worker.rank, limit)

    def _on_over(self, worker: Worker, well: bool) -> None:
        self._starting.on_over(worker.rank, well)

    def _on_table(self, worker: Worker, request: dict[str, Any]) -> None:
        self._tables.on_request(self._workers, worker, request)

    def _on_late_init(self) -> None:
        """Names the first missing rank as the cause; a stopped rank before others."""
        asked, text = self._starting.ask()
        if asked:
            self._workers.ask_late(asked, text)
            return
        missing, text = self._starting.missing()
        self._fail(Failure(missing, self._workers.host_of(missing), "passed limit", text, time.time()))

    def _on_host(self, message: dict[str, Any]) -> bool:
        """A message from another host's agent or remote shell. Returns whether to keep the connection."""
        keep = "arrived" in message or "lost" in message or "leaves" in message
        if self._arrivals is None or self._ending.sent or "leaves" in message:
            return keep
        if "lost" in message:
            rank, host = self._arrivals.place(message)
            self._fail(failure.of_loss(rank, host, message["lost"]))
            return keep
        failed = self._arrivals.note(message)
        if self._arrivals.any_failed():
            wait = 0.0 if self._arrivals.complete() else OTHER_HOSTS
            until = min(self._timers.time_of(self._on_unreached), time.monotonic() + wait)
            self._timers.at(until, self._on_unreached)
        return keep or failed

    def _on_unreached(self) -> None:
        if not self._ending.sent:
            self._ending.unreached = self._ending.late = True
            self._end(signal.SIGTERM)

    def _on_late_start(self) -> None:
        arrived = self._workers.arrived
        if self._ending.sent or len(arrived) >= self._workers.ranks:
            return
        missing = sorted(set(range(self._workers.ranks)) - arrived)
        self._last_lines.show_words(self._failure.cause, self._ending)
        self._screen.note(
            f"{len(arrived)} of {self._workers.ranks} ranks arrived within {self._limits.start:g} s, "
            f"missing: {names(missing)}; increase the limit by --start-timeout"
        )
        self._ending.unreached = self._arrivals is not None and not self._arrivals.complete()
        self._ending.late = True
        self._end(signal.SIGTERM)

    # ---- ending ---------------------------------------------------------------------------------------------------

    def _fail(self, cause: Failure) -> None:
        """Records the first cause. Sends it to all ranks, and gives them a moment to report how they end."""
        if self._ending.sent or self._failure.cause is not None:
            return
        self._failure.cause = cause
        self._workers.send_cause(cause.to_fields())
        self._timers.at(time.monotonic() + CONSEQUENCES, self._on_consequences)

    def _on_consequences(self) -> None:
        """Ends the job. But waits longer for a rank that has not yet sent its traceback."""
        if self._failure.waits_for_traceback():
            self._timers.at(time.monotonic() + CONSEQUENCES, self._on_consequences)
        else:
            self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Asks all workers to end their programs. After the grace, kills the remaining ones."""
        if self._ending.sent:
            return
        self._ending.sent = number
        self._timers.cancel(self._on_consequences)
        self._workers.end_all(number)
        kill_at = time.monotonic() + self._limits.grace + AFTER_GRACE
        self._timers.at(kill_at, self._kill)
        self._timers.at(kill_at + AFTER_GRACE, self._give_up)
        if not self._workers:
            self._mpiexec.terminate()

    def _kill(self) -> None:
        self._workers.end_all(signal.SIGKILL)
        self._mpiexec.terminate()

    def _on_abandoned(self) -> None:
        self._ending.abandoned = True
        if self._workers:
            self._end(signal.SIGTERM)

    def _give_up(self) -> None:
        self._ending.given_up = True
