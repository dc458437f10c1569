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
from sirtaki.launch.job import failure
from sirtaki.launch.job.failure import Failure
from sirtaki.launch.job.mpiexec import Mpiexec
from sirtaki.launch.job.screen import Screen
from sirtaki.launch.job.starting import Starting, names
from sirtaki.launch.job.status import Status
from sirtaki.launch.job.workers import Worker, Workers
from sirtaki.launch.protocol import channel
from sirtaki.launch.remote.remote_hosts import Arrivals
from sirtaki.starters import Starter
from sirtaki.timing.text import summary_line

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOO_MUCH_WAITING = 1 << 20  # bytes not yet read from our output; beyond that the ranks wait
_AFTER_GRACE = 1.5  # seconds for workers after their own grace
_CONSEQUENCES = 1.0  # seconds for the other ranks, after a failure, to receive the cause and to report how they end
_PATIENCE_WITH_TRACE = 5  # at most so many times longer, for a rank with an exception to send its traceback
_ORPHANED = 0.5  # seconds that ranks may outlive mpiexec
_REMIND = 2.0  # seconds until a message says that ranks still have time to end
_TIDY_UP = 1.5  # seconds for mpiexec to end after its ranks, before it is asked to
_OTHER_HOSTS = 3.0  # seconds for other hosts to answer after one was not reached, so that the message names all
_FAILED = 1
_NEVER = float("inf")


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
    ranks. arrivals: which other hosts are reached, None if unknown. title: the job in one line.
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
        arrivals: Arrivals | None = None,
        title: str = "a job",
    ) -> None:
        self._ranks = ranks
        self._screen = screen
        self._starter = starter
        self._limits = limits
        self._verbose = verbose
        self._selector = selectors.PollSelector()
        self._mpiexec = Mpiexec(self._selector, screen.note_raw, eager=verbose)
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
            on_joined=lambda worker, limit: self._starting.on_call(worker.rank, limit),
            on_over=lambda worker, well: self._starting.on_over(worker.rank, well),
            on_cause=self._on_cause,
            on_status=lambda worker, text: self.status.on_answer(worker, text),
            on_times=self._on_times,
            on_numbers=lambda worker, text: self.status.on_answer(worker, text, channel.NUMBERS),
            on_unhandled=self._on_unhandled,
        )
        self.status = Status(self._selector, self._workers, title, ranks)
        self._arrivals = arrivals
        self._times: dict[int, dict[str, Any]] = {}  # by rank: where the time of its steps went
        self._failure: Failure | None = None
        self._signal = 0  # the signal that asked this process to end
        self._end_signal = 0  # the signal that the workers got
        self._passed_on: set[int] = set()  # signals for which no rank has yet reported a missing handler
        self._late = False
        self._abandoned = False  # mpiexec has ended long ago
        self._starting = Starting(ranks)
        # Times at which actions are due; reset to _NEVER when done.
        self._end_at = _NEVER
        self._waited = 0
        self._reported: set[int] = set()  # ranks that have sent the failure cause
        self._start_by = self._kill_at = self._give_up_at = self._abandoned_at = self._tidy_at = _NEVER
        self._unreached_at = _NEVER
        self._remind_at = _NEVER
        self._unreached = False

    def run(self, command: Sequence[str], environ: dict[str, str], started: Callable[[], None]) -> int:
        """Starts the command and runs until no process of the job lives. Returns the exit code. Raises OSError.

        started: called when the command runs. An error that it raises ends the job.
        """
        processes.become_subreaper()
        wake = self._watch_signals()
        self._start_by = time.monotonic() + self._limits.start
        self._mpiexec.start(command, environ)
        try:
            started()
            while not self._gone():
                self._wait()
        finally:
            self._mpiexec.kill()
            processes.kill_descendants(os.getpid(), processes.reap_orphans)
        code = self._report()
        self._deliver_output()
        self._selector.close()
        wake.close()
        return code

    def _watch_signals(self) -> socket.socket:
        receive, self._wake = socket.socketpair()
        receive.setblocking(False)
        self._wake.setblocking(False)
        for number in (*_ENDING, signal.SIGCHLD, *PASSED_ON):
            if signal.getsignal(number) != signal.SIG_IGN:  # keeps the effect of nohup
                signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(receive, selectors.EVENT_READ, self._on_signal)
        return receive

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._watch_output()
        starting = (self._start_by, self._starting.due, self._unreached_at)
        ending = (self._end_at, self._kill_at, self._give_up_at, self._abandoned_at, self._tidy_at, self._remind_at)
        self._select(min(*starting, *ending, self._mpiexec.show_at, self.status.due()))
        self.status.look()
        if self._screen.broken() and not self._end_signal:
            self._signal = signal.SIGPIPE
            self._end(signal.SIGTERM)
        now = time.monotonic()
        if not self._mpiexec.alive():
            if self._abandoned_at == _NEVER and not self._abandoned:
                self._abandoned_at = now + _ORPHANED
        elif self._end_signal and not self._workers and self._tidy_at == _NEVER and not self._mpiexec.terminated:
            self._tidy_at = now + _TIDY_UP
            self._give_up_at = max(self._give_up_at, now + 2 * _TIDY_UP)
        self._on_time(now)

    def _select(self, until: float) -> None:
        timeout = None if until == _NEVER else max(0.0, until - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)

    def _on_time(self, now: float) -> None:
        if now >= self._mpiexec.show_at:
            self._show_words()
        if now >= self._start_by:
            self._start_by = _NEVER
            self._on_late_start()
        if now >= self._unreached_at:
            self._unreached_at = _NEVER
            self._on_unreached()
        if now >= self._starting.due:
            self._on_late_init()
        if now >= self._end_at:
            self._end_at = _NEVER
            self._on_consequences(now)
        if now >= self._remind_at:
            self._remind_at = _NEVER
            self._remind()
        if now >= self._abandoned_at:
            self._abandoned_at, self._abandoned = _NEVER, True
            if self._workers:
                self._end(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = _NEVER
            self._workers.end_all(signal.SIGKILL)
            self._mpiexec.terminate()
        if now >= self._tidy_at:
            self._tidy_at = _NEVER
            self._mpiexec.terminate()

    def _gone(self) -> bool:
        """Whether all processes of the job have ended, or the remaining ones do not react."""
        if time.monotonic() >= self._give_up_at:
            return True
        if self._mpiexec.alive() or self._workers:
            return False
        return self._mpiexec.silent() or self._abandoned

    def _watch_output(self) -> None:
        """While a reader of our output is slow: waits for it and lets the ranks wait."""
        for sink in self._screen.sinks():
            registered = sink.descriptor in self._selector.get_map()
            if sink.waiting and not registered:
                self._selector.register(sink.descriptor, selectors.EVENT_WRITE, self._on_writable)
            elif registered and not sink.waiting:
                self._selector.unregister(sink.descriptor)
        self._workers.receive_messages(bool(self._end_signal) or self._screen.waiting() <= _TOO_MUCH_WAITING)

    def _on_writable(self, descriptor: int, events: int) -> None:
        self._screen.write()

    def _deliver_output(self) -> None:
        """Waits for a slow reader of our output without limit; after Ctrl-C or a similar signal, only a second."""
        until = _NEVER
        while self._screen.waiting() and time.monotonic() < until:
            if self._signal and until == _NEVER:
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

    def _on_end_request(self, number: int) -> None:
        if self._signal:  # the second request: kill now
            self._kill_at = 0.0
            return
        self._signal = number
        self._end(number)
        self._remind_at = time.monotonic() + _REMIND

    def _remind(self) -> None:
        if self._workers and self._kill_at != _NEVER:
            name = signal.Signals(self._signal).name
            self._screen.note(
                f"the ranks have {self._limits.grace:g} s from {name} to end (--grace-seconds); "
                f"a second {name} kills them"
            )

    def _on_arrival(self, worker: Worker) -> None:
        if len(self._workers.arrived) == self._ranks:
            self._start_by = _NEVER
        if self._end_signal:
            self._workers.end_program(worker, self._end_signal)

    def _on_exit(self, worker: Worker, message: dict[str, Any]) -> None:
        """ended (in the message): the program was asked to end, so its exit code is a consequence and no cause."""
        code = message["code"]
        self.status.on_end(worker.rank, code)
        first = self._failure
        if first is not None and first.rank == worker.rank and first.code is None and not message["ended"]:
            first.code = code
        if code and not message["ended"] and first is not None and worker.rank not in self._reported:
            self._on_own_exit(failure.of_exit(worker.rank, worker.host, code, message["asked"]))
        if (code or message["lost"]) and not message["ended"]:
            self._fail(failure.of_exit(worker.rank, worker.host, code, message["asked"]))
        if self._failure is not None and self._workers.all_ended():
            self._end(signal.SIGTERM)

    def _on_own_exit(self, cause: Failure) -> None:
        """A rank called sys.exit() without giving a cause. Errors of other ranks that miss it follow from that exit."""
        if self._failure is not None and self._failure.kind == "refused negotiation":
            cause.trace = self._failure.trace
            cause.witness = self._failure.witness
            self._failure = cause

    def _on_loss(self, worker: Worker) -> None:
        self._screen.finish(worker.rank)
        self.status.on_end(worker.rank, None)
        if not worker.reported:
            self._fail(failure.of_loss(worker.rank, worker.host, worker.lost))

    def _on_cause(self, worker: Worker, message: dict[str, Any]) -> None:
        cause = failure.of_message(worker.rank, worker.host, message)
        if message["code"]:  # 0: the program has ended, and its exit code may give more information
            self._reported.add(worker.rank)
        if self._failure is not None:
            self._failure.add(cause)
        self._fail(cause)

    def _on_times(self, worker: Worker, report: dict[str, Any]) -> None:
        self._times[worker.rank] = report

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
        if self._arrivals is None or self._end_signal or "leaves" in message:
            return keep
        if "lost" in message:
            rank, host = self._arrivals.place(message)
            self._fail(failure.of_loss(rank, host, message["lost"]))
            return keep
        failed = self._arrivals.note(message)
        if self._arrivals.any_failed():
            wait = 0.0 if self._arrivals.complete() else _OTHER_HOSTS
            self._unreached_at = min(self._unreached_at, time.monotonic() + wait)
        return keep or failed

    def _on_unreached(self) -> None:
        assert self._arrivals is not None
        if self._end_signal:
            return
        self._unreached = True
        self._late = True
        self._end(signal.SIGTERM)

    def _on_late_start(self) -> None:
        arrived = self._workers.arrived
        if self._end_signal or len(arrived) >= self._ranks:
            return
        missing = sorted(set(range(self._ranks)) - arrived)
        self._show_words()
        self._screen.note(
            f"{len(arrived)} of {self._ranks} ranks arrived within {self._limits.start:g} s, "
            f"missing: {names(missing)}; increase the limit by --start-timeout"
        )
        self._unreached = self._arrivals is not None and not self._arrivals.complete()
        self._late = True
        self._end(signal.SIGTERM)

    # ---- ending ---------------------------------------------------------------------------------------------------

    def _fail(self, cause: Failure) -> None:
        """Records the first cause. Sends it to all ranks, and gives them a moment to report how they end."""
        if self._end_signal or self._failure is not None:
            return
        self._failure = cause
        self._workers.send_cause(cause.to_fields())
        self._end_at = time.monotonic() + _CONSEQUENCES

    def _on_consequences(self, now: float) -> None:
        """Ends the job. But waits longer for a rank that has not yet sent its traceback."""
        first = self._failure
        if (
            first is not None
            and first.witness >= 0
            and not first.trace
            and self._waited < (_PATIENCE_WITH_TRACE if first.kind == "exception" else 1)
        ):
            self._waited += 1
            self._end_at = now + _CONSEQUENCES
            return
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Asks all workers to end their programs. After the grace, kills the remaining ones."""
        if self._end_signal:
            return
        self._end_signal = number
        self._end_at = _NEVER
        self._workers.end_all(number)
        self._kill_at = time.monotonic() + self._limits.grace + _AFTER_GRACE
        self._give_up_at = self._kill_at + _AFTER_GRACE
        if not self._workers:
            self._mpiexec.terminate()

    def _report(self) -> int:
        """Prints once, as the last line, how the job ended; nothing if it succeeded. Returns the exit code."""
        code = self._mpiexec.exit_code()
        if self._failure is not None:
            if (
                self._failure.aborted
                and code not in self._starter.codes_of_killed_ranks
                and not self._mpiexec.terminated
            ):
                self._failure.code = code
            self._show_words()
            self._screen.show_for_rank(self._failure.reporter(), self._failure.details())
            self._screen.note(str(self._failure))
            return self._failure.exit_code()
        if self._signal:
            broken = self._screen.broken() if self._signal == signal.SIGPIPE else None
            if broken is not None and not isinstance(broken, BrokenPipeError):
                self._screen.note(f"the job was ended because its output cannot be written: {broken.strerror}")
                return 1
            if self._signal != signal.SIGPIPE:
                self._screen.note(f"ended by {signal.Signals(self._signal).name}; all ranks have ended")
            return 128 + self._signal
        self._show_words()
        if self._unreached and self._arrivals is not None:
            for line in self._arrivals.lines():
                self._screen.note(line)
            return 1
        if self._late:
            return code or 1
        if code:
            self._screen.note(f"{self._starter.called} ended the job with exit code {code}")
        elif len(self._workers.arrived) < self._ranks:
            started = f"has started {len(self._workers.arrived)} of {self._ranks} ranks"
            self._screen.note(
                f"{self._starter.called} ended with exit code 0, but {started}: do --mpi-args give another number?"
            )
            return _FAILED
        elif self._times:
            self._screen.note(summary_line.line([report for _, report in sorted(self._times.items())]))
        return code

    def _show_words(self) -> None:
        """Prints mpiexec's output, unless a rank's failure explains the end better."""
        unexplained = self._failure is None or self._failure.kind == "lost connection"
        if self._verbose or (not self._unreached and unexplained):
            self._mpiexec.show_words()
        else:
            self._mpiexec.forget_words()
