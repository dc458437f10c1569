"""A file of bounded size to which several processes append, and that is complete at any moment.

A write replaces the file's end and adds a new one in one call, so a process that is killed between two writes leaves
a complete file. The kernel ends a killed process's write only where a page of the file ends. So a write stays within a
page if possible, and otherwise begins a new page with a whole event: at most the file's end can be missing. The next
writer removes what is incomplete. A new file takes an old one's place by a rename, which the others notice.

A lock orders the writers; the kernel releases it when its process dies. It is a lock of the open file, not of the
process: that one would end when the program reads its own timeline and closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Event = dict[str, Any]  # of Chrome's trace format
_PAGE = 4096  # bytes; a kernel's pages, and the blocks of other file systems, are a multiple


class Form(Protocol):
    """How events are written. A file is `head`, encoded events and `tail`."""

    head: bytes
    tail: bytes
    filler: bytes  # one byte without meaning between two events, or nothing

    def encode(self, events: Sequence[Event], first: bool) -> list[bytes]:
        """The bytes of each event. first: nothing but the head stands before them."""

    def complete(self, content: bytes) -> int:
        """The number of bytes that are complete, without a tail. content: may begin with any whole event."""

    def newest(self, content: bytes, size: int) -> bytes:
        """What describes rows, and the newest of the other events, about so many bytes; with head, without tail."""

    def first(self, content: bytes) -> Event | None:
        """The first event of a file that begins so."""


class SharedFile:
    """limit: bytes. Beyond it the older half of the events is dropped."""

    def __init__(self, path: str, form: Form, limit: int) -> None:
        self.path = path
        self._form = form
        self._limit = limit
        self._file = -1
        self._sound = 0  # up to here the file was complete

    def create(self, events: Sequence[Event]) -> None:
        """A new file with these events takes the place of any other. Raises OSError."""
        self._replace(self._form.head + b"".join(self._form.encode(events, first=True)))
        self._open()

    def first(self) -> Event | None:
        """The file's first event; None if there is no such file."""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            return self._form.first(file.read(1 << 16))
        return None

    def append(self, events: Sequence[Event]) -> None:
        """Raises OSError, also if there is no file."""
        if not events:
            return
        encoded = self._form.encode(events, first=False)
        with self._locked() as file:
            end = self._sound_end(file)
            blocks = self._in_pages(encoded, end)
            needed = sum(map(len, blocks))
            if end + needed + len(self._form.tail) > self._limit:
                end = self._make_room(file, end, needed)
                file, blocks = self._file, self._in_pages(encoded, end)
            for block in blocks:
                self._write(file, block + self._form.tail, end)
                self._sound = end = end + len(block)

    def _in_pages(self, encoded: Sequence[bytes], at: int) -> list[bytes]:
        """What one write each adds to a file whose events end at this byte."""
        blocks, room, tail = [b""], -at % _PAGE, len(self._form.tail)
        for event in encoded:
            if len(event) + tail > room:
                event = self._form.filler * room + event
                blocks.append(b"")
                room = len(event) + (room - len(event)) % _PAGE
            blocks[-1] += event
            room -= len(event)
        return [block for block in blocks if block]

    def is_replaced(self) -> bool:
        """Whether there is another file under this name than at the last call of append() or create()."""
        try:
            there = os.stat(self.path)
        except OSError:
            return True
        own = os.fstat(self._file) if self._file >= 0 else None
        return own is None or (own.st_ino, own.st_dev) != (there.st_ino, there.st_dev)

    def close(self) -> None:
        file, self._file = self._file, -1  # in this order, for a process that is forked meanwhile
        if file >= 0:
            os.close(file)

    def _open(self) -> None:
        self.close()
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._sound = 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            if self._file < 0:
                self._open()
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if not self.is_replaced():
                break
            self._open()
        try:
            yield self._file
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _sound_end(self, file: int) -> int:
        """Where the next events go: before the tail, if that is whole."""
        size = os.fstat(file).st_size
        tail = self._form.tail
        if tail and os.pread(file, len(tail), size - len(tail)) == tail:
            return size - len(tail)
        since = min(self._sound, size)
        content = os.pread(file, size - since, since)
        return since + self._form.complete(content)

    def _write(self, file: int, data: bytes, at: int) -> None:
        written = os.pwrite(file, data, at)
        while written < len(data):
            written += os.pwrite(file, data[written:], at + written)
        if os.fstat(file).st_size > at + len(data):
            os.ftruncate(file, at + len(data))

    def _make_room(self, file: int, end: int, needed: int) -> int:
        """Puts the newest half into a new file. Returns its end."""
        content = self._form.newest(os.pread(file, end, 0), max(0, self._limit // 2 - needed))
        self._replace(content)
        fcntl.flock(file, fcntl.LOCK_UN)
        self._open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self._sound_end(self._file)

    def _replace(self, content: bytes) -> None:
        folder, name = os.path.split(self.path)
        file, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
        try:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file, 0o666 & ~mask)
            self._write(file, content + self._form.tail, 0)
            os.rename(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(file)
