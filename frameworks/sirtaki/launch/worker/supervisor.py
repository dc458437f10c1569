"""The inner process of a worker. It starts the user's program, forwards its output, reports and cleans up its end."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import time

from sirtaki import starters
from sirtaki.host import processes, segments
from sirtaki.host.signals import PASSED_ON
from sirtaki.launch.protocol import channel
from sirtaki.launch.protocol.spec import Spec
from sirtaki.launch.worker import program, program_signals, rank_link
from sirtaki.launch.worker.launcher_connection import LauncherConnection
from sirtaki.launch.worker.output import ProgramOutput
from sirtaki.launch.worker.program_signals import ProgramSignals, Warnings

_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Seconds before the program is asked to end. After MPI_Abort of this rank, it needs them to exit with its own code.
# And a scheduler's signal to all processes may arrive here a little later than at the launcher.
_BEFORE_ASKING = 0.5
_LEFTOVERS = 2.5  # seconds for processes that the program left running at its end
# A failed rank stays so many seconds: otherwise mpiexec would end the others before they receive the cause.
_LINGERS = 4.0
_WAITS_FOR_END = 0.5  # seconds after the end of the rank's process, for the program to end too and report more
_LEAVES_BY_ITSELF = 1.5  # seconds for a program to end after it left the job normally; its exit code may be the cause
_ANSWERS = 3.0  # seconds for the rank to send its status
_LOOK_AGAIN = 0.05  # seconds; only after a program's end, while processes that it left are running
_NEVER = float("inf")


class Supervisor:
    """Runs one rank's program; one thread does everything in `run`.

    mpiexec's descriptors for the program stay open here, too. MPICH's mpiexec ends all ranks as soon as one rank closes
    its descriptor without finalising MPI, before the others have reported how they end. outer: a pipe on which the
    outer process sends the signals that it receives; it closes when that process ends.
    """

    def __init__(self, spec: Spec, rank: int, connection: socket.socket, outer: int) -> None:
        self._spec = spec
        self._outer = outer
        self._signals = ProgramSignals()
        self._warnings = Warnings()
        self._rank = rank
        self._selector = selectors.PollSelector()
        self._launcher = LauncherConnection(
            self._selector,
            connection,
            self._on_frame,
            self._on_launcher_gone,
            lambda full: self._output.set_paused(full),
        )
        self._output = ProgramOutput(self._selector, spec, rank, self._launcher.send, lambda: self._line.drain())
        self._child = 0
        self._lost = 0  # the rank's process if it ended without a report
        self._exit_code: int | None = None
        self._announced_code = 0  # the exit code that the rank announced with its failure cause
        self._segments: set[bytes] = set()  # of a program that was asked to end, and may not remove them
        self._clean = False  # the program and all its processes have ended
        self._signalled = False  # the program was asked to end before its end
        self._ask_at = _NEVER
        self._signal_at = _NEVER
        self._kill_at = _NEVER
        self._give_up_at = _NEVER
        self._leftovers_at = _NEVER
        self._leave_at = _NEVER
        self._missed_at = _NEVER
        self._answer_by = _NEVER
        self._left = False  # has left the job normally
        self._up = False  # its init() has ended
        self._line = rank_link.RankLink(self._selector, self._on_rank, self._on_rank_lost)

    def run(self) -> int:
        """Runs until the program and all its processes have ended and its output is delivered. Returns an exit code."""
        wake = self._watch_signals()
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)
        self._selector.register(self._outer, selectors.EVENT_READ, self._on_outer)
        self._launcher.send(channel.HELLO, {"rank": self._rank, "host": channel.own_host_name(), "pid": os.getpid()})
        self._start()
        while not self._finished():
            self._wait()
        segments.remove_names(self._segments)
        code = self._exit_code or 0
        return code if code >= 0 else 128 - code

    # ---- starting -------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> socket.socket:
        receive, send = socket.socketpair()
        receive.setblocking(False)
        send.setblocking(False)
        self._wake = send  # kept open
        for number in (*_ASKED, *PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return receive

    def _start(self) -> None:
        try:
            self._start_program()
        except OSError as error:
            self._exit_code, self._clean = 1, True
            self._leave_at = time.monotonic() + _LINGERS
            text = f"the program was not started: {_words(error)}"
            self._launcher.send(channel.CAUSE, {"kind": "early exit", "text": text, "time": time.time(), "code": 1})
            self._launcher.send(channel.EXIT, {"code": 1, "ended": False, "asked": False, "lost": False})

    def _start_program(self) -> None:
        self._output.open_files()
        self._child, out, err = program.start(self._spec, self._line.name)
        self._output.add(channel.OUT, out)
        self._output.add(channel.ERR, err)

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        deadline = min(
            self._warnings.due(),
            self._ask_at,
            self._signal_at,
            self._kill_at,
            self._leave_at,
            self._missed_at,
            self._answer_by,
        )
        if self._exit_code is not None and not self._clean:
            deadline = min(deadline, time.monotonic() + _LOOK_AGAIN)
        timeout = None if deadline == _NEVER else max(0.0, deadline - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)
        now = time.monotonic()
        for number in self._warnings.take(now):
            self._pass_on(number)
        if now >= min(self._ask_at, self._signal_at):
            self._ask_at = self._signal_at = _NEVER
            self._end_program()
        if now >= self._kill_at:
            self._kill_at = _NEVER
            self._kill()
        if now >= self._leave_at:
            self._leave_at = _NEVER
        if now >= self._answer_by:
            self._answer_by = _NEVER
            self._send_state("does not answer")
        if now >= self._missed_at:
            self._missed_at = _NEVER
            self._on_missed()
        if self._exit_code is not None and not self._clean:
            self._end_leftovers()

    def _finished(self) -> bool:
        return self._clean and not self._launcher.is_waiting() and self._leave_at == _NEVER

    def _on_signal(self, wake: socket.socket, events: int) -> None:
        try:
            numbers = wake.recv(1024)
        except BlockingIOError:
            return
        if signal.SIGCHLD in numbers:
            self._reap()
        self._warnings.note_received(numbers)
        if ending := set(_ASKED).intersection(numbers):
            self._signals.note_sent_to_all(ending)
            self._on_asked(min(ending))

    def _on_outer(self, pipe: int, events: int) -> None:
        numbers = os.read(pipe, 1024)
        if not numbers:
            self._selector.unregister(pipe)
        self._on_asked(numbers[0] if numbers else signal.SIGTERM)

    def _on_asked(self, number: int) -> None:
        """mpiexec or another process asks this process to end."""
        if self._kill_at == _NEVER:
            self._signals.number = self._signals.number or number
            self._ask_at = time.monotonic() + _BEFORE_ASKING
            self._kill_at = self._ask_at + self._spec.grace

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == channel.END:
            self._on_end(payload[0])
        elif kind == channel.ASK:
            self._on_ask()
        elif kind == channel.NUMBERS:
            if not (self._line.joined() and self._up and self._line.ask_numbers()):
                self._launcher.send(channel.NUMBERS, b"")
        elif kind == channel.FAIL:
            self._note_segments()  # a rank inside MPI_Init exits at once when it receives the cause
            self._line.fail(json.loads(payload))
        elif kind == channel.LATE:
            self._on_late(payload.decode())
        elif kind == channel.SIGNAL:
            self._warnings.pass_on(payload[0])

    def _on_end(self, number: int) -> None:
        self._leave_at = _NEVER
        if number == signal.SIGKILL:
            self._launcher.drop_waiting()  # the launcher no longer waits for it
            self._kill()
            return
        self._signals.number = self._signals.number or number
        leaves = self._left and number == signal.SIGTERM
        self._signalled = self._signalled or not leaves
        now = time.monotonic()
        self._signal_at = now + (_LEAVES_BY_ITSELF if leaves else _BEFORE_ASKING)
        useless = processes.is_stopped(self._line.process() or self._child)  # a stopped program cannot save anything
        self._kill_at = min(self._kill_at, now + (min(_LEFTOVERS, self._spec.grace) if useless else self._spec.grace))

    def _pass_on(self, number: int) -> None:
        """Passes on a scheduler's warning if the program handles it; otherwise the program would die of it."""
        if self._up and self._line.pass_on(number):
            return  # the rank's process answers if it has no handler
        process = self._line.process() or self._child
        if self._exit_code is None and program_signals.has_handler(process, number):
            processes.send([process], number)
        else:
            self._launcher.send(channel.UNHANDLED, bytes([number]))

    def _on_launcher_gone(self) -> None:
        self._leave_at = _NEVER
        self._launcher.close()
        if self._spec.directory:
            shutil.rmtree(self._spec.directory, ignore_errors=True)
        self._kill_at = min(self._kill_at, time.monotonic() + self._spec.grace)
        self._end_program()

    # ---- ending ---------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._exit_code = os.waitstatus_to_exitcode(status)
                self._output.read()  # its last output is sent before its end
                self._line.drain()
                self._exit_code = self._exit_code or self._announced_code
                asked, lost = self._ask_at != _NEVER, self._line.was_lost()
                if (lost or self._exit_code) and not self._signalled and not asked and self._signal_at == _NEVER:
                    self._leave_at = time.monotonic() + _LINGERS
                news: dict[str, object] = {
                    "code": self._exit_code,
                    "ended": self._signalled,
                    "asked": asked,
                    "lost": lost,
                }
                self._launcher.send(channel.EXIT, news)

    def _on_rank(self, kind: bytes, content: bytes) -> None:
        if kind == rank_link.JOINS:
            self._left = self._up = False
            self._launcher.send(channel.JOINED, content)
        elif kind == rank_link.CAUSE:
            cause = json.loads(content)
            self._announced_code = cause["code"]
            self._output.write_trace(cause["trace"])
            self._launcher.send(channel.CAUSE, content)
        elif kind == rank_link.STATUS:
            self._answer_by = _NEVER
            self._launcher.send(channel.STATUS, content)
        elif kind == rank_link.TIMES:
            self._launcher.send(channel.TIMES, content)
        elif kind == rank_link.NUMBERS:
            self._launcher.send(channel.NUMBERS, content)
        elif kind == rank_link.LEAVES:
            self._left = True
        elif kind in (rank_link.UP, rank_link.FAILED):
            self._up = kind == rank_link.UP
            self._launcher.send(channel.OVER, {"well": self._up})
        elif kind == rank_link.DESCRIPTOR:
            self._line.give(starters.descriptor()[1])
        elif kind == rank_link.SIGNAL:
            self._launcher.send(channel.UNHANDLED, content)

    def _on_ask(self) -> None:
        if self._line.joined() and not self._up:
            self._send_state("has called init(), and waits there for other ranks")
        elif self._line.joined() and self._line.ask():
            self._answer_by = time.monotonic() + _ANSWERS
        elif self._exit_code is not None:
            self._send_state("has ended")
        else:
            self._send_state("has left the job" if self._left else "has not called init()")

    def _send_state(self, words: str) -> None:
        """Sends the rank's status, as far as this process can see it."""
        process = self._line.process() or self._child
        where = f"rank {self._rank} on host {channel.own_host_name()}, process {process}"
        self._launcher.send(channel.STATUS, f"{where}: {words}; it {processes.state(process)}".encode(errors="replace"))

    def _on_late(self, text: str) -> None:
        process = self._line.process()
        if process and not self._up and processes.is_stopped(process):
            text = f"{text}: rank {self._rank}, process {process}, {processes.state(process)}"
            self._launcher.send(channel.CAUSE, {"kind": "passed limit", "text": text, "time": time.time(), "code": 1})

    def _on_rank_lost(self, process: int) -> None:
        if self._exit_code is None and self._signalled:
            self._end_program()  # in case another process had started it
        elif self._exit_code is None:
            self._lost = process
            self._missed_at = time.monotonic() + _WAITS_FOR_END

    def _on_missed(self) -> None:
        """The rank's process has ended without a report, but the program that started it is still running."""
        if self._exit_code is None and not self._line.joined() and not self._signalled:
            text = f"process {self._lost} is gone without shutdown()"
            self._launcher.send(channel.CAUSE, {"kind": "early exit", "text": text, "time": time.time(), "code": 1})

    def _note_segments(self) -> None:
        self._segments |= segments.held_by(processes.descendants(os.getpid()))

    def _end_program(self) -> None:
        """Asks the rank's process to end; without one the process started here, which may be a script around it."""
        if self._exit_code is None:
            self._signalled = True
            self._signals.number = self._signals.number or signal.SIGTERM
            self._note_segments()
            self._signals.ask([self._line.process() or self._child])

    def _kill(self) -> None:
        if self._exit_code is None:
            self._signalled = True
            self._note_segments()
        processes.kill_descendants(os.getpid(), self._reap)

    def _end_leftovers(self) -> None:
        """After the program's end: asks its remaining processes to end, later kills them. Then closes the pipes."""
        left = processes.descendants(os.getpid())
        now = time.monotonic()
        if left and self._leftovers_at == _NEVER:
            self._leftovers_at = now + _BEFORE_ASKING  # a scheduler's signal to all processes may end a script first
        if now >= self._leftovers_at and self._give_up_at == _NEVER:
            self._signals.number = self._signals.number or signal.SIGTERM
            may_save = (
                self._signalled or self._signals.came_from_outside()
            )  # a script's child may be the rank's process
            grace = self._spec.grace if may_save else min(_LEFTOVERS, self._spec.grace)
            self._kill_at = min(self._kill_at, now + grace)
            self._give_up_at = self._kill_at + 3.0
        if now >= self._leftovers_at:
            self._signals.ask(program_signals.own_children(left))
        if not left or now > self._give_up_at:
            self._output.finish()
            self._clean = True


def _words(error: OSError) -> str:
    file = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
    return f"{file}{error.strerror or error}"
