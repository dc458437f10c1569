"""Answers the engine's request for this rank's status: the Python stacks of all its threads."""

from __future__ import annotations

import faulthandler
import functools
import operator
import os
import signal
import sys
import threading
import traceback
from types import FrameType

from sirtaki.checks.call_site import is_internal
from sirtaki.native import core
from sirtaki.timing import summary

_FRAMES = 15  # at most, for each thread
_INNERMOST = 2  # always shown, even if they are a framework's


def _format(frame: FrameType) -> str:
    """The calls of the user's program and the innermost calls, without a framework's internal calls between them."""
    stack = traceback.extract_stack(frame)
    inner = len(stack) - _INNERMOST
    shown = [entry for number, entry in enumerate(stack) if number >= inner or not is_internal(entry.filename)]
    return "".join(traceback.format_list(shown[-_FRAMES:]))


def format_stacks() -> str:
    """The stacks of all threads but the calling one; main thread first, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        if ident != threading.get_ident():
            parts.append(f"thread {names.get(ident, ident)}:\n{_format(frame)}")
    return "".join(parts).rstrip()


def _prepare_for_a_held_lock() -> None:
    """Gives the core an unused signal, if any, on which faulthandler writes the stacks while the GIL is held."""
    global _signal, _file
    if not _signal:
        _signal = _unused_signal()
        if not _signal:
            return
        _file = os.memfd_create("sirtaki-stacks")
        faulthandler.register(_signal, file=_file, all_threads=True)
    core.set_forced_stacks(_signal, _file)


def _unused_signal() -> int:
    """A real-time signal for which neither Python nor a library has a handler; 0 if there is none."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigCgt:", "SigIgn:", "SigBlk:"))]
    taken = functools.reduce(operator.or_, masks, 0)
    free = (number for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN + 2, -1) if not taken >> (number - 1) & 1)
    return next(free, 0)


def _serve() -> None:
    while core.question():
        core.answer(_steps() + format_stacks())


def _steps() -> str:
    line = summary.own_line()
    return f"{line}\n" if line else ""


_server: threading.Thread | None = None
_signal = 0
_file = -1


def start() -> None:
    """Starts the thread that serves one engine; it ends when that engine shuts down."""
    global _server
    _prepare_for_a_held_lock()
    _server = threading.Thread(target=_serve, name="sirtaki-stacks", daemon=True)
    _server.start()


def stop() -> None:
    """Waits for that thread, after the engine has shut down. If the interpreter ended first, it would crash."""
    global _server
    core.set_forced_stacks(0, -1)  # when the interpreter ends, faulthandler releases the signal
    server, _server = _server, None
    if server is not None and server is not threading.current_thread():
        server.join()
