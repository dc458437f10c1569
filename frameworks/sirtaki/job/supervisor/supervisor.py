"""The inner process of a worker. It starts the user's program, forwards its output, reports and cleans up its end."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import time
from typing import Any

from sirtaki import starters
from sirtaki.host import processes
from sirtaki.host.signals import PASSED_ON
from sirtaki.host.timers import NEVER, Timers
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.spec import Spec
from sirtaki.job.protocol.time_limits import BEFORE_ASKING, LEAVE_BY_ITSELF, LINGER, STATUS_OF_RANK, WAIT_FOR_PROGRAM
from sirtaki.job.supervisor import program, program_signals, rank_link
from sirtaki.job.supervisor.launcher_connection import LauncherConnection
from sirtaki.job.supervisor.output import ProgramOutput
from sirtaki.job.supervisor.program_signals import Warnings
from sirtaki.job.supervisor.rank_program import RankProgram, RankState

_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LOOK_AGAIN = 0.05  # seconds; only after a program's end, while processes that it left are running


class Supervisor:
    """Runs one rank's program; one thread does everything in `run`.

    mpiexec's descriptors for the program stay open here, too. MPICH's mpiexec ends all ranks as soon as one rank closes
    its descriptor without finalising MPI, before the others have reported how they end. outer: a pipe on which the
    outer process sends the signals that it receives; it closes when that process ends.
    """

    def __init__(self, spec: Spec, rank: int, connection: socket.socket, outer: int) -> None:
        self._spec = spec
        self._rank = rank
        self._outer = outer
        self._selector = selectors.PollSelector()
        self._timers = Timers()
        self._launcher = LauncherConnection(
            self._selector,
            connection,
            self._on_frame,
            self._on_launcher_gone,
            lambda full: self._output.set_paused(full),
        )
        self._output = ProgramOutput(self._selector, spec, rank, self._launcher.send, lambda: self._line.drain())
        self._line = rank_link.RankLink(self._selector, self._on_rank, self._on_rank_lost)
        self._program = RankProgram(spec.grace)
        self._state = RankState()
        self._warnings = Warnings()
        self._address = str(connection.getsockname()[0]) if spec.address == "" else spec.address or ""
        self._generation = 0  # of the table that the rank has, 0 while it has none
        self._asked = False  # mpiexec or another process has asked this process to end

    def run(self) -> int:
        """Runs until the program and all its processes have ended and its output is delivered. Returns an exit code."""
        wake = self._watch_signals()
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)
        self._selector.register(self._outer, selectors.EVENT_READ, self._on_outer)
        self._launcher.send(channel.HELLO, {"rank": self._rank, "host": channel.own_host_name(), "pid": os.getpid()})
        self._start()
        while not self._finished():
            self._wait()
        self._program.remove_segments()
        code = self._program.exit_code or 0
        if code == os.EX_TEMPFAIL:
            return 0  # Open MPI would end the other ranks; the launcher has the code
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
            self._program.exit_code, self._program.over = 1, True
            self._timers.at(time.monotonic() + LINGER, self._stay_no_longer)
            text = f"the program was not started: {_words(error)}"
            self._launcher.send(channel.CAUSE, {"kind": "early exit", "text": text, "time": time.time(), "code": 1})
            self._launcher.send(channel.EXIT, {"code": 1, "ended": False, "asked": False, "lost": False})

    def _start_program(self) -> None:
        self._output.open_files()
        self._program.pid, out, err = program.start(self._spec, self._line.name, self._address)
        self._output.add(channel.OUT, out)
        self._output.add(channel.ERR, err)

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        deadline = min(self._warnings.due(), self._timers.next())
        if self._program.has_leftovers():
            deadline = min(deadline, time.monotonic() + _LOOK_AGAIN)
        timeout = None if deadline == NEVER else max(0.0, deadline - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)
        now = time.monotonic()
        for number in self._warnings.take(now):
            self._pass_on(number)
        self._timers.run(now)
        if self._program.has_leftovers():
            self._kill_by(self._program.end_leftovers(now))
            if self._program.over:
                self._output.finish()

    def _finished(self) -> bool:
        return self._program.over and not self._launcher.is_waiting() and not self._timers.waits(self._stay_no_longer)

    def _stay_no_longer(self) -> None:
        """While it has a time, this process stays."""

    def _kill_by(self, latest: float) -> None:
        self._timers.at(min(self._timers.time_of(self._kill), latest), self._kill)

    def _on_signal(self, wake: socket.socket, events: int) -> None:
        try:
            numbers = wake.recv(1024)
        except BlockingIOError:
            return
        if signal.SIGCHLD in numbers:
            self._reap()
        self._warnings.note_received(numbers)
        if ending := set(_ASKED).intersection(numbers):
            self._program.signals.note_sent_to_all(ending)
            self._on_asked(min(ending))

    def _on_outer(self, pipe: int, events: int) -> None:
        numbers = os.read(pipe, 1024)
        if not numbers:
            self._selector.unregister(pipe)
        self._on_asked(numbers[0] if numbers else signal.SIGTERM)

    def _on_asked(self, number: int) -> None:
        """mpiexec or another process asks this process to end."""
        if self._timers.time_of(self._kill) == NEVER:
            self._asked = True
            self._program.signals.number = self._program.signals.number or number
            ask_at = time.monotonic() + BEFORE_ASKING
            self._timers.at(ask_at, self._end_program)
            self._kill_by(ask_at + self._spec.grace)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == channel.END:
            self._on_end(payload[0])
        elif kind == channel.ASK:
            self._on_ask()
        elif kind == channel.NUMBERS:
            if not (self._line.joined() and self._state.up and self._line.ask_numbers()):
                self._launcher.send(channel.NUMBERS, b"")
        elif kind == channel.FAIL:
            self._program.note_segments()  # a rank inside MPI_Init exits at once when it receives the cause
            self._on_cause(json.loads(payload))
        elif kind == channel.TABLE:
            self._on_table(json.loads(payload))
        elif kind == channel.UPDATED:
            self._line.update(payload)
        elif kind == channel.LATE:
            self._on_late(payload.decode())
        elif kind == channel.SIGNAL:
            self._warnings.pass_on(payload[0])

    def _on_table(self, table: dict[str, Any]) -> None:
        if "nonce" in table:
            table["key"] = channel.key_of_ranks(self._spec.token, bytes.fromhex(table["nonce"])).hex()
        self._generation = table.get("generation", 0)
        self._line.answer(table)

    def _on_cause(self, cause: dict[str, Any]) -> None:
        """In an elastic job the rank may have left the failed generation already."""
        if cause.get("generation", self._generation) == self._generation:
            self._line.fail(cause)

    def _on_end(self, number: int) -> None:
        self._timers.cancel(self._stay_no_longer)
        if number == signal.SIGKILL:
            self._launcher.drop_waiting()  # the launcher no longer waits for it
            self._kill()
            return
        self._program.signals.number = self._program.signals.number or number
        leaves = self._state.left and number == signal.SIGTERM
        self._program.asked = self._program.asked or not leaves
        now = time.monotonic()
        end_at = now + (LEAVE_BY_ITSELF if leaves else BEFORE_ASKING)
        self._timers.at(min(self._timers.time_of(self._end_program), end_at), self._end_program)
        self._kill_by(now + self._program.grace_of(self._line.process()))

    def _pass_on(self, number: int) -> None:
        """Passes on a scheduler's warning if the program handles it; otherwise the program would die of it."""
        if self._state.up and self._line.pass_on(number):
            return  # the rank's process answers if it has no handler
        process = self._line.process() or self._program.pid
        if self._program.exit_code is None and program_signals.has_handler(process, number):
            processes.send([process], number)
        else:
            self._launcher.send(channel.UNHANDLED, bytes([number]))

    def _on_launcher_gone(self) -> None:
        self._timers.cancel(self._stay_no_longer)
        self._launcher.close()
        if self._spec.directory:
            shutil.rmtree(self._spec.directory, ignore_errors=True)
        self._kill_by(time.monotonic() + self._spec.grace)
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
            if pid == self._program.pid:
                self._on_program_ended(os.waitstatus_to_exitcode(status))

    def _on_program_ended(self, code: int) -> None:
        self._program.exit_code = code
        self._output.read()  # its last output is sent before its end
        self._line.drain()
        code = self._program.exit_code = code or self._state.announced_code
        lost, waits = self._line.was_lost(), self._timers.waits(self._end_program)
        failed = lost or code not in (0, os.EX_TEMPFAIL)
        if failed and not self._program.asked and not waits:
            self._timers.at(time.monotonic() + LINGER, self._stay_no_longer)
        asked = self._asked and waits
        self._launcher.send(channel.EXIT, {"code": code, "ended": self._program.asked, "asked": asked, "lost": lost})

    def _on_rank(self, kind: bytes, content: bytes) -> None:
        if kind == rank_link.JOINS:
            self._state.left = self._state.up = False
            self._generation = 0
            self._launcher.send(channel.JOINED, content)
        elif kind == rank_link.CAUSE:
            cause = json.loads(content)
            self._state.announced_code = cause["code"]
            self._output.write_trace(cause["trace"])
            self._launcher.send(channel.CAUSE, content)
        elif kind == rank_link.STATUS:
            self._timers.cancel(self._on_no_answer)
            self._launcher.send(channel.STATUS, content)
        elif kind == rank_link.TABLE:
            self._launcher.send(channel.TABLE, content)
        elif kind == rank_link.TIMES:
            self._launcher.send(channel.TIMES, content)
        elif kind == rank_link.NUMBERS:
            self._launcher.send(channel.NUMBERS, content)
        elif kind == rank_link.LEAVES:
            self._state.left = True
            self._generation = 0  # the rank may have connected again already, for the next one
        elif kind in (rank_link.UP, rank_link.FAILED):
            self._state.up = kind == rank_link.UP
            self._launcher.send(channel.OVER, {"well": self._state.up})
        elif kind == rank_link.DESCRIPTOR:
            self._line.give(starters.descriptor()[1])
        elif kind == rank_link.SIGNAL:
            self._launcher.send(channel.UNHANDLED, content)
        elif kind == rank_link.WARNED:
            self._launcher.send(channel.WARNED, content)

    def _on_ask(self) -> None:
        if self._line.joined() and not self._state.up:
            self._send_state("has called init(), and waits there for other ranks")
        elif self._line.joined() and self._line.ask():
            self._timers.at(time.monotonic() + STATUS_OF_RANK, self._on_no_answer)
        elif self._program.exit_code is not None:
            self._send_state("has ended")
        else:
            self._send_state("has called shutdown()" if self._state.left else "has not called init()")

    def _on_no_answer(self) -> None:
        self._send_state("does not answer")

    def _send_state(self, words: str) -> None:
        """Sends the rank's status, as far as this process can see it."""
        process = self._line.process() or self._program.pid
        where = f"rank {self._rank} on host {channel.own_host_name()}, process {process}"
        self._launcher.send(channel.STATUS, f"{where}: {words}; it {processes.state(process)}".encode(errors="replace"))

    def _on_late(self, text: str) -> None:
        process = self._line.process()
        if process and not self._state.up and processes.is_stopped(process):
            text = f"{text}: rank {self._rank}, process {process}, {processes.state(process)}"
            self._launcher.send(channel.CAUSE, {"kind": "passed limit", "text": text, "time": time.time(), "code": 1})

    def _on_rank_lost(self, process: int) -> None:
        if self._program.exit_code is None and self._program.asked:
            self._end_program()  # in case another process had started it
        elif self._program.exit_code is None:
            self._state.lost = process
            self._timers.at(time.monotonic() + WAIT_FOR_PROGRAM, self._on_missed)

    def _on_missed(self) -> None:
        """The rank's process has ended without a report, but the program that started it is still running."""
        if self._program.exit_code is None and not self._line.joined() and not self._program.asked:
            text = f"process {self._state.lost} is gone without shutdown()"
            cause = {"kind": "early exit", "text": text, "time": time.time(), "code": 1, "gone": True}
            self._launcher.send(channel.CAUSE, cause)

    def _end_program(self) -> None:
        self._timers.cancel(self._end_program)
        self._program.ask(self._line.process())

    def _kill(self) -> None:
        self._program.kill(self._reap)


def _words(error: OSError) -> str:
    file = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
    return f"{file}{error.strerror or error}"
