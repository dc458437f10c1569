"""`preempted()`: a signal that reaches the ranks at different times lets all of them stop after the same step.

Until a signal comes, a call costs a counter and no exchange. Then a thread of each rank sends the number of calls that
its program has made. The programs stop at the first call that none of them has made yet. The thread is needed because
the program may be waiting for a rank that has stopped already. The kernel wakes it, by set_wakeup_fd().
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from sirtaki import exchange
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.job.rank import supervisor_link
from sirtaki.native import core

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_END = b"\0"


def preempted() -> bool:
    """Whether the job must stop now, because SIGTERM, SIGUSR1 or SIGUSR2 has come. All ranks get the same answer.

    Call it once in each step, on every rank. If it returns True: save the state (`checkpoint()`) and end the program by
    `sys.exit(os.EX_TEMPFAIL)`, which is 75. Schedulers and scripts can start a job again that ends with this code.

    The first call waits for the other ranks, and must come from the main thread (ValueError). It handles the signals:
    SIGTERM also where the program has a handler, which is called as well, the others where it has none. Later calls
    wait only if a signal has come. `sirtakirun` passes on a signal that only it or one rank has received. Without
    `sirtakirun` every rank must receive it. ValueError before init(). SirtakiInternalError if the job has failed.

    >>> hvd.preempted()
    False
    """
    watch = _watch or _begin()
    watch.calls += 1
    return watch.noticed and watch.is_over()


class _Watch:
    """calls: number of preempted() so far. noticed: a signal has come."""

    def __init__(self) -> None:
        self.calls = 0
        self.noticed = False
        self._last_step: float = math.inf
        self._error: Exception | None = None
        self._decided = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers: dict[int, Any] = {}  # before
        self._dies_of_sigterm = not callable(signal.getsignal(signal.SIGTERM))
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGTERM or before == signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, self._handler(before))
        self._wakes = self._take_wakeup()
        self._thread = threading.Thread(target=self._run, name="sirtaki-preempted", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        self._decided.wait()
        if self._error is not None:
            raise self._error
        return self.calls > self._last_step

    def close(self) -> None:
        """For a rank that leaves the job. After a signal the handlers stay: the program may be saving its work."""
        if not self.noticed:
            self.restore()
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, _END)
        self._thread.join()
        if not self.noticed:
            self.close_pipe()

    def restore(self) -> None:
        for number, before in self._handlers.items():
            signal.signal(number, before)
        if self._wakes:
            signal.set_wakeup_fd(-1)

    def close_pipe(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def _handler(self, before: Any) -> Callable[[int, FrameType | None], None]:
        def note(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write, bytes([number]))
            if callable(before):
                before(number, frame)

        return note

    def _take_wakeup(self) -> bool:
        """False if an event loop has it. Then the signals are noticed as soon as the main thread runs Python code."""
        other = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if other != -1:
            signal.set_wakeup_fd(other)
        return other == -1

    def _run(self) -> None:
        while 0 not in (numbers := set(os.read(self._read, 64))):
            wanted = numbers.intersection(self._handlers)
            if wanted and not self.noticed:
                self.noticed = True  # before `calls` is read: the program counts first, and then looks here
                supervisor_link.warn(min(wanted))
                self._agree()
            if signal.SIGTERM in numbers and self._dies_of_sigterm and _job_has_failed():
                _die_of_sigterm()

    def _agree(self) -> None:
        try:
            counts = exchange.allgather_bytes(self.calls.to_bytes(8, "big"), "preempted")
            self._last_step = max(int.from_bytes(count, "big") for count in counts)
        except (SirtakiInternalError, ValueError) as error:
            # Without a failure another rank has left, so the program is at its end, too.
            self._error = error if _job_has_failed() else None
        self._decided.set()


def _job_has_failed() -> bool:
    return core.is_initialized() and core.cause() is not None


def _die_of_sigterm() -> None:
    """The launcher ends the ranks of a failed job by SIGTERM. They would compute until SIGKILL, and save nothing."""
    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # Python sets handlers on the main thread only
    os.kill(os.getpid(), signal.SIGTERM)


_watch: _Watch | None = None


def _begin() -> _Watch:
    global _watch
    core.rank()  # ValueError before init()
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("the first call of preempted() must come from the main thread, which handles signals")
    watch = _Watch()
    try:
        exchange.allgather_bytes(b"", "the first call of preempted()")
    except BaseException:
        watch.close()
        raise
    _watch = watch
    return watch


def leave() -> None:
    """Called when this rank leaves the job."""
    global _watch
    watch, _watch = _watch, None
    if watch is not None:
        watch.close()


# A forked child is no rank: a signal ends it as usual, and does not reach its parent, also right after the fork.
def _before_fork() -> None:
    global _mask
    if _watch is not None:
        _mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    if _watch is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)


def _in_child() -> None:
    global _watch
    watch, _watch = _watch, None
    if watch is not None:
        watch.restore()
        watch.close_pipe()
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)


_mask: set[int] = set()  # of the thread that forks
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
