"""How this process leaves the job: together with the others if the program ended well, at once if it failed.

A rank that dies of an exception must not wait for the others, who may wait for it: the whole job ends with its cause.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core

_FAILED = 1
_INTERRUPTED = 130
_GRACE = 1.0  # seconds in which the other ranks can report the same failure before the job is aborted


class _Ending:
    """One a process, installed by the first init. Knows whether the program ended by an exception."""

    def __init__(self, shutdown: Callable[[], None]) -> None:
        self._shutdown = shutdown
        self._process = os.getpid()  # a forked child inherits the handlers but not the job
        self._exit_code = 0
        self._cause = ""
        self._is_shared = False
        self._chained = sys.__excepthook__
        self._handling = False
        self._seen_before = getattr(sys, "last_value", None)
        atexit.register(self._at_exit)

    def take_hook(self) -> None:
        """Puts our hook before the program's, which is called after it."""
        if sys.excepthook != self._uncaught:
            self._chained = sys.excepthook
            sys.excepthook = self._uncaught

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._handling:  # the program's hook calls the one that it found, ours
            return
        self._handling = True
        try:
            if os.getpid() == self._process and core.is_initialized():
                self._note(error)
                _print_traceback(kind, error, trace)
                if self._chained is sys.__excepthook__:
                    return
            self._chained(kind, error, trace)
        finally:
            self._handling = False

    def _note(self, error: BaseException) -> None:
        self._exit_code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        self._is_shared = isinstance(error, SirtakiInternalError)  # then every rank has it, and all end by themselves
        self._cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return
        self._look_behind_replaced_hook()
        if not self._exit_code or not core.is_initialized():
            self._shutdown()
            core.finalize()
            return
        _stop_children()
        if self._is_shared:
            time.sleep(_GRACE)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        core.abort(self._exit_code, self._cause)

    def _look_behind_replaced_hook(self) -> None:
        """The interpreter keeps the last uncaught exception, also when the program has put its own hook over ours."""
        last = getattr(sys, "last_value", None)
        replaced = sys.excepthook != self._uncaught
        interactive = hasattr(sys, "ps1") or sys.flags.interactive
        if not self._exit_code and replaced and not interactive and last is not None and last is not self._seen_before:
            self._note(last)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback with the rank in front of each line, in one write so that ranks do not mix."""
    lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
    prefix = f"[rank {core.rank()}]"
    lines.insert(0, f"uncaught exception on host {socket.gethostname()}, process {os.getpid()}:")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.write("".join(f"{prefix} {line}\n" for line in lines))
        sys.stderr.flush()


def _stop_children() -> None:
    """Workers of multiprocessing (data loaders) would outlive an abort for some seconds."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    with contextlib.suppress(Exception):
        for child in multiprocessing.active_children():
            child.terminate()


_installed: _Ending | None = None


def install(shutdown: Callable[[], None]) -> None:
    """Registers the exit handlers, once a process, and the hook for uncaught exceptions."""
    global _installed
    if _installed is None:
        _installed = _Ending(shutdown)
    _installed.take_hook()
