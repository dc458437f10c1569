"""The output of a rank's program: goes to the launcher, and to the files of --output-filename."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from sirtaki.job.protocol import channel
from sirtaki.job.protocol.spec import Spec

_READ_BYTES = 1 << 16


class ProgramOutput:
    """send(kind, data): to the launcher. on_end(): called before a pipe is closed, whose writers have all ended."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        spec: Spec,
        rank: int,
        send: Callable[[int, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._spec = spec
        self._rank = rank
        self._send = send
        self._on_end = on_end
        self._files: dict[int, int] = {}  # kind of frame -> descriptor of the file; -1 without one
        self._pipes: dict[int, int] = {}  # read end -> kind of frame
        self._reading = True

    def open_files(self) -> None:
        """Raises OSError. Call it before the program starts."""
        self._files = {kind: self._opened(kind) for kind in (channel.OUT, channel.ERR)}

    def add(self, kind: int, pipe: int) -> None:
        """Forwards what arrives in this pipe."""
        self._pipes[pipe] = kind
        self._selector.register(pipe, selectors.EVENT_READ, self._on_pipe)

    def read(self) -> None:
        """Forwards the output that has arrived."""
        for pipe in list(self._pipes):
            self._on_pipe(pipe, selectors.EVENT_READ)

    def finish(self) -> None:
        """Forwards the rest and closes all pipes."""
        for pipe in list(self._pipes):
            while self._on_pipe(pipe, selectors.EVENT_READ):
                pass
            self._close(pipe)

    def write_trace(self, trace: str) -> None:
        """The launcher prints it as the last text; the rank's output file gets it here."""
        if trace and channel.ERR in self._pipes.values():
            self._write_file(channel.ERR, f"{trace}\n".encode(errors="replace"))

    def set_paused(self, paused: bool) -> None:
        """While it is paused, the program waits as soon as a pipe is full."""
        if paused != self._reading:
            return
        self._reading = not paused
        for pipe in self._pipes:
            if paused:
                self._selector.unregister(pipe)
            else:
                self._selector.register(pipe, selectors.EVENT_READ, self._on_pipe)

    def _on_pipe(self, pipe: int, events: int) -> bool:
        """Forwards the output in this pipe; False if there was none."""
        if pipe not in self._pipes:
            return False
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._on_end()
            self._close(pipe)
            return False
        self._write_file(self._pipes[pipe], data)
        self._send(self._pipes[pipe], data)
        return True

    def _close(self, pipe: int) -> None:
        if pipe in self._pipes:
            if self._reading:
                self._selector.unregister(pipe)
            file = self._files.pop(self._pipes.pop(pipe))
            os.close(pipe)
            if file >= 0:
                os.close(file)

    def _write_file(self, kind: int, data: bytes) -> None:
        """A full disk does not end the program: its output still goes to the launcher."""
        file = self._files[kind]
        view = memoryview(data)
        try:
            while file >= 0 and view:
                view = view[os.write(file, view) :]
        except OSError as error:
            self._files[kind] = -1
            os.close(file)
            where = os.fsdecode(self._path(kind))
            text = f"sirtakirun: nothing more is written to {where} on {channel.own_host_name()}: {error.strerror}\n"
            self._send(channel.ERR, text.encode(errors="surrogateescape"))

    def _opened(self, kind: int) -> int:
        if not self._spec.output:
            return -1
        path = self._path(kind)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        begin = os.O_APPEND if self._spec.restart else os.O_TRUNC
        return os.open(path, os.O_WRONLY | os.O_CREAT | begin, 0o666)

    def _path(self, kind: int) -> bytes:
        width = len(str(self._spec.size - 1))
        name = b"stdout" if kind == channel.OUT else b"stderr"
        return os.path.join(self._spec.output, b"rank.%0*d" % (width, self._rank), name)
