"""Rank 0 writes checkpoints on a thread beside training, and sends the newest one to all ranks."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sirtaki import exchange
from sirtaki.checkpoints import files
from sirtaki.native import core

_PIECE = 1 << 26  # bytes of one broadcast

_writer: ThreadPoolExecutor | None = None
_pending: Future[None] | None = None


def save(path: Any, dump: Callable[[], io.BytesIO], suffix: str, keep: int) -> None:
    """On rank 0: waits for the file before, raises its error, and begins to write what dump() returns."""
    global _writer, _pending
    folder = _checked(path)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"checkpoint: keep must be a whole number of at least 1, got {keep!r}")
    if core.rank() != 0:
        return
    finish()
    content = dump()
    if _writer is None:
        _writer = ThreadPoolExecutor(1, "sirtaki-checkpoint")
    _pending = _writer.submit(files.write, folder, content.getbuffer(), suffix, keep)


def finish() -> None:
    """Waits until the last file is written, and raises its error."""
    global _pending
    pending, _pending = _pending, None
    if pending is not None:
        pending.result()


def load(path: Any, suffix: str) -> io.BytesIO | None:
    """The newest whole file of rank 0's folder, the same on every rank. All ranks call it. OSError on all ranks."""
    folder = _checked(path)
    content: bytes | None = None
    error: OSError | None = None
    if core.rank() == 0:
        try:
            finish()
            content = files.newest(folder, suffix)
        except OSError as found:
            error = found
    text, length = exchange.broadcast_object((str(error or ""), None if content is None else len(content)), 0, "latest")
    if text:
        raise error or OSError(f"rank 0 cannot read a checkpoint: {text}")
    if length is None:
        return None
    return _on_all_ranks(content, length)


def _on_all_ranks(content: bytes | None, length: int) -> io.BytesIO:
    received = io.BytesIO(content or b"")
    for start in range(0, length, _PIECE):
        piece = None if content is None else content[start : start + _PIECE]
        arrived = exchange.broadcast_bytes(piece, 0, "latest")
        if content is None:
            received.write(arrived)
    received.seek(0)
    return received


def _checked(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ValueError(f"path must be the name of a folder, got {path!r}")
    return os.fsdecode(path)


def _forget() -> None:
    """In a forked child, which has no such thread."""
    global _writer, _pending
    _writer = _pending = None


os.register_at_fork(after_in_child=_forget)
