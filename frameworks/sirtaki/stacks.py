"""Answers the engine when it asks what this process is doing: the Python stacks of all its threads."""

from __future__ import annotations

import sys
import threading
import traceback

from sirtaki.native import core

_LIMIT = 12  # innermost frames of one thread


def format_stacks() -> str:
    """The stacks of all threads but the calling one, main thread first, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        if ident != threading.get_ident():
            lines = "".join(traceback.format_stack(frame, _LIMIT))
            parts.append(f"thread {names.get(ident, ident)}:\n{lines}")
    return "".join(parts).rstrip()


def _serve() -> None:
    while core.question():
        core.answer(format_stacks())


def start() -> threading.Thread:
    """Starts the thread that serves one engine; it ends when that engine shuts down."""
    thread = threading.Thread(target=_serve, name="sirtaki-stacks", daemon=True)
    thread.start()
    return thread
