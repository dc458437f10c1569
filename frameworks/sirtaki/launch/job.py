"""One running job: mpiexec, the workers that report to this process, and how it all ends.

Everything happens in one thread, in `Job.run`, woken by sockets, pipes and signals.
"""

import contextlib
import ctypes
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sirtaki.launch import channel, processes
from sirtaki.launch.screen import Screen

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOO_MUCH_WAITING = 1 << 20  # bytes for a slow reader of our output: the ranks wait
_MPIEXEC_WORDS_WAIT = 1.0  # seconds until words of mpiexec are shown, unless a rank's failure explains them
_AFTER_GRACE = 1.5  # seconds that workers have beyond their own grace
_ALL_GONE = 0.5  # seconds between the end of the ranks and that of mpiexec, either way
_NEVER = float("inf")


@dataclass
class Failure:
    """The first rank that failed. code: exit code, or minus a signal's number; None when its worker vanished.

    aborted: mpiexec was ending the job already, as after MPI_Abort; then its exit code is what the rank asked for.
    """

    rank: int
    host: str
    code: int | None
    aborted: bool = False

    def exit_code(self) -> int:
        if self.code is None:
            return 128 + signal.SIGKILL
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} failed first: {self._how()}"

    def _how(self) -> str:
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


class _Worker:
    """One connection. rank: -1 until the worker has said who it is."""

    def __init__(self, connection: socket.socket, nonce: bytes | None) -> None:
        self.connection = connection
        self.frames = channel.Frames()
        self.nonce = nonce  # until it has answered to it
        self.early = bytearray()
        self.rank = -1
        self.host = ""
        self.reported = False


class Job:
    """listeners: sockets that workers connect to. token: what those that come by TCP must hold.

    grace: seconds that workers leave their programs between the request to end and SIGKILL.
    """

    def __init__(
        self,
        ranks: int,
        listeners: Sequence[socket.socket],
        token: bytes,
        screen: Screen,
        *,
        grace: float,
        start_timeout: float,
        verbose: bool,
    ) -> None:
        self._ranks = ranks
        self._listeners = listeners
        self._token = token
        self._screen = screen
        self._grace = grace
        self._start_timeout = start_timeout
        self._verbose = verbose
        self._selector = selectors.PollSelector()
        self._workers: list[_Worker] = []
        self._arrived: set[int] = set()
        self._failure: Failure | None = None
        self._signal = 0  # that we were ended by
        self._end_signal = 0  # that the workers were told
        self._words = bytearray()  # of mpiexec, not shown yet
        self._pipes: list[int] = []
        self._late = False
        self._terminated = False
        self._words_at = self._kill_at = self._give_up_at = _NEVER
        self._mpiexec_gone_at = _NEVER
        self._start_by = _NEVER

    def run(self, command: Sequence[str], environ: dict[str, str]) -> int:
        """Starts the command and watches until nothing of the job lives. Returns the exit code."""
        processes.become_subreaper()
        wake = self._watch_signals()
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, self._on_listener)
        self._start_by = time.monotonic() + self._start_timeout
        self._mpiexec = self._start(command, environ)
        try:
            while not self._finished():
                self._wait()
        finally:
            if self._mpiexec.poll() is None:
                self._mpiexec.kill()
                self._mpiexec.wait()
            processes.kill_descendants(os.getpid(), processes.reap_orphans)
            self._selector.close()
            wake.close()
        return self._report()

    # ---- starting -------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> socket.socket:
        receive, self._wake = socket.socketpair()
        receive.setblocking(False)
        self._wake.setblocking(False)
        for number in (*_ENDING, signal.SIGCHLD):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays in force
                signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(receive, selectors.EVENT_READ, self._on_signal)
        return receive

    def _start(self, command: Sequence[str], environ: dict[str, str]) -> "subprocess.Popen[bytes]":
        """In a session of its own, so that Ctrl-C reaches this process alone, and it decides."""
        parent = os.getpid()
        ctypes.CDLL(None)  # loaded before the fork

        def die_with_us() -> None:
            processes.die_with_parent(signal.SIGTERM, parent)

        mpiexec = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_us,
        )
        for pipe in (mpiexec.stdout, mpiexec.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes.append(pipe.fileno())
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, self._on_words)
        return mpiexec

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._watch_output()
        deadline = min(self._words_at, self._kill_at, self._give_up_at, self._start_by)
        if self._mpiexec.returncode is not None:
            deadline = min(deadline, self._mpiexec_gone_at + _ALL_GONE)
        timeout = None if deadline == _NEVER else max(0.0, deadline - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)
        if self._screen.broken() and not self._end_signal:
            self._signal = signal.SIGPIPE
            self._end(signal.SIGTERM)
        now = time.monotonic()
        if self._mpiexec.poll() is not None:
            self._mpiexec_gone_at = min(self._mpiexec_gone_at, now)
        elif self._end_signal and not self._workers:
            self._kill_at = min(self._kill_at, now + _ALL_GONE)
        self._on_time(now)

    def _on_time(self, now: float) -> None:
        if now >= self._words_at:
            self._show_words()
        if now >= self._start_by:
            self._start_by = _NEVER
            self._on_late_start()
        if now >= self._mpiexec_gone_at + _ALL_GONE and self._workers:
            self._end(signal.SIGTERM)  # mpiexec is gone, but not its ranks
        if now >= self._kill_at:
            self._kill_at = now + _ALL_GONE
            self._tell_workers(signal.SIGKILL)
            self._terminate()

    def _finished(self) -> bool:
        now = time.monotonic()
        if now >= self._give_up_at:
            return True
        if self._mpiexec.returncode is None or self._workers:
            return False
        if self._pipes and now < self._mpiexec_gone_at + _ALL_GONE:
            return False
        return not self._screen.waiting()

    def _watch_output(self) -> None:
        """Waits for whoever reads our output when there is something for him, and lets the ranks wait meanwhile."""
        for sink in self._screen.sinks():
            registered = sink.descriptor in self._selector.get_map()
            if sink.waiting and not registered:
                self._selector.register(sink.descriptor, selectors.EVENT_WRITE, self._on_writable)
            elif registered and not sink.waiting:
                self._selector.unregister(sink.descriptor)
        full = self._screen.waiting() > _TOO_MUCH_WAITING and not self._end_signal
        for worker in self._workers:
            registered = worker.connection in self._selector.get_map()
            if full and registered:
                self._selector.unregister(worker.connection)
            elif not full and not registered:
                self._selector.register(worker.connection, selectors.EVENT_READ, self._on_worker)

    def _on_writable(self, descriptor: int, events: int) -> None:
        self._screen.write()

    def _on_signal(self, wake: socket.socket, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(1024):
                if number in _ENDING:
                    self._on_end_request(number)

    def _on_end_request(self, number: int) -> None:
        if self._signal:  # asked twice: now
            self._kill_at = 0.0
            return
        self._signal = number
        self._end(number)

    def _on_late_start(self) -> None:
        if self._end_signal or len(self._arrived) >= self._ranks:
            return
        missing = sorted(set(range(self._ranks)) - self._arrived)
        names = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
        self._show_words()
        self._screen.note(
            f"{len(self._arrived)} of {self._ranks} ranks arrived within {self._start_timeout:g} s, "
            f"missing: rank{'s' if len(missing) > 1 else ''} {names}; --start-timeout gives them more time"
        )
        self._late = True
        self._end(signal.SIGTERM)

    # ---- workers --------------------------------------------------------------------------------------------------

    def _on_listener(self, listener: socket.socket, events: int) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        nonce = None
        if listener.family != socket.AF_UNIX:
            nonce = secrets.token_bytes(channel.NONCE_BYTES)
            connection.send(nonce)
        self._workers.append(_Worker(connection, nonce))
        self._selector.register(connection, selectors.EVENT_READ, self._on_worker)

    def _on_worker(self, connection: socket.socket, events: int) -> None:
        worker = next(worker for worker in self._workers if worker.connection is connection)
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if worker.nonce is not None and data:
            data = self._authenticate(worker, data)
            if not data:
                return
        try:
            for kind, payload in worker.frames.feed(data):
                self._on_frame(worker, kind, payload)
        except ValueError:
            data = b""
        if not data:
            self._lose(worker)

    def _authenticate(self, worker: _Worker, data: bytes) -> bytes:
        """Returns what follows the worker's proof; drops a stranger."""
        import hmac

        assert worker.nonce is not None
        worker.early += data
        if len(worker.early) < channel.PROOF_BYTES:
            return b""
        answer, rest = bytes(worker.early[: channel.PROOF_BYTES]), bytes(worker.early[channel.PROOF_BYTES :])
        if not hmac.compare_digest(answer, channel.proof(self._token, worker.nonce)):
            self._lose(worker)
            return b""
        worker.nonce = None
        return rest

    def _on_frame(self, worker: _Worker, kind: int, payload: bytes) -> None:
        if kind in (channel.OUT, channel.ERR):
            self._screen.feed(worker.rank, kind, payload)
        elif kind == channel.HELLO:
            self._on_hello(worker, json.loads(payload))
        elif kind == channel.EXIT:
            self._on_exit(worker, json.loads(payload))

    def _on_hello(self, worker: _Worker, message: dict[str, Any]) -> None:
        worker.rank, worker.host = message["rank"], message["host"]
        self._arrived.add(worker.rank)
        if len(self._arrived) == self._ranks:
            self._start_by = _NEVER
        if self._end_signal:
            self._tell(worker, self._end_signal)

    def _on_exit(self, worker: _Worker, message: dict[str, Any]) -> None:
        """ended: the program was told to end before it did, so its code is a consequence, not a cause."""
        worker.reported = True
        if message["code"] != 0 and not message["ended"]:
            self._fail(Failure(worker.rank, worker.host, message["code"], message["asked"]))

    def _lose(self, worker: _Worker) -> None:
        if worker.connection in self._selector.get_map():
            self._selector.unregister(worker.connection)
        worker.connection.close()
        self._workers.remove(worker)
        if worker.rank >= 0:
            self._screen.finish(worker.rank)
            if not worker.reported:
                self._fail(Failure(worker.rank, worker.host, None))

    # ---- ending ---------------------------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        if not self._end_signal:
            self._failure = failure
            self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Tells all workers to end their programs; what has not gone after the grace is killed."""
        if self._end_signal:
            return
        self._end_signal = number
        self._tell_workers(number)
        now = time.monotonic()
        self._kill_at = min(self._kill_at, now + self._grace + _AFTER_GRACE)
        self._give_up_at = now + self._grace + 2 * _AFTER_GRACE
        if not self._workers:
            self._terminate()

    def _terminate(self) -> None:
        if self._mpiexec.poll() is None:
            self._terminated = True
            self._mpiexec.terminate()

    def _tell_workers(self, number: int) -> None:
        for worker in list(self._workers):
            self._tell(worker, number)

    def _tell(self, worker: _Worker, number: int) -> None:
        with contextlib.suppress(OSError):
            worker.connection.send(channel.frame(channel.END, bytes([number])))

    def _report(self) -> int:
        self._screen.write()
        code = self._mpiexec.returncode or 0
        code = code if code >= 0 else 128 - code
        if self._failure is not None:
            if self._failure.aborted and code and not self._terminated:
                self._failure.code = code
            self._show_words()
            self._screen.note(str(self._failure))
            code = self._failure.exit_code()
        elif self._signal:
            if self._signal != signal.SIGPIPE:
                self._screen.note(f"ended by {signal.Signals(self._signal).name}; no rank is left")
            code = 128 + self._signal
        elif self._late:
            code = code or 1
        elif code:
            self._show_words()
            self._screen.note(f"mpiexec ended the job with exit code {code}")
        return code

    # ---- what mpiexec itself says ---------------------------------------------------------------------------------

    def _on_words(self, pipe: int, events: int) -> None:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            self._pipes.remove(pipe)
            return
        self._words += data
        if self._verbose:
            self._show_words()
        elif self._words_at == _NEVER and not self._end_signal:
            self._words_at = time.monotonic() + _MPIEXEC_WORDS_WAIT

    def _show_words(self) -> None:
        """Words of mpiexec are shown when no rank's failure has come within a second: then they are news."""
        self._words_at = _NEVER
        explained = self._failure is not None and self._failure.code is not None
        if self._words and (self._verbose or not explained):
            text = bytes(self._words)
            self._screen.note_raw(text if text.endswith(b"\n") else text + b"\n")
        self._words.clear()
