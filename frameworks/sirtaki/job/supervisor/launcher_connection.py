"""The worker's connection to the launcher."""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable

from sirtaki.job.protocol import channel

_HELD_BYTES = 1 << 19  # if more output than this waits for the launcher, the program waits


class LauncherConnection:
    """on_frame(kind, payload): for each frame of the launcher. on_gone(): the launcher has ended or is not reachable.

    on_full(is_full): called after each attempt to send, with whether too many bytes wait.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connection: socket.socket,
        on_frame: Callable[[int, bytes], None],
        on_gone: Callable[[], None],
        on_full: Callable[[bool], None],
    ) -> None:
        self._selector = selector
        self._connection: socket.socket | None = connection
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._on_full = on_full
        self._outgoing = bytearray()
        self._incoming = channel.Frames()
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, self._on_event)

    def is_waiting(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._outgoing)

    def drop_waiting(self) -> None:
        self._outgoing.clear()

    def close(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None
        self._outgoing.clear()
        self._on_full(False)

    def send(self, kind: int, content: bytes | dict[str, object]) -> None:
        if self._connection is None:
            return
        self._outgoing += channel.frame(kind, content if isinstance(content, bytes) else json.dumps(content).encode())
        self._flush()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            while self._outgoing:
                del self._outgoing[: connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._on_gone()
            return
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(connection, interest, self._on_event)
        self._on_full(len(self._outgoing) > _HELD_BYTES)

    def _on_event(self, connection: socket.socket, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if not events & selectors.EVENT_READ or self._connection is None:
            return
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_gone()
            return
        for kind, payload in self._incoming.feed(data):
            self._on_frame(kind, payload)
