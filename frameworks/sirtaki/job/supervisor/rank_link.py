"""The supervisor's end of the socket to its rank's process (sirtaki/job/rank/supervisor_link.py is the other end).

A rank that never calls init() has no connection. One process at a time can be the rank; another may follow it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Callable
from typing import Any

# From the rank: it calls init; init has succeeded; init has failed; it has left; failure cause; its status; where the
# time of its steps went.
JOINS, UP, FAILED, LEAVES, CAUSE, STATUS, TIMES = b"J", b"U", b"N", b"L", b"C", b"P", b"T"
# To the rank: the job ends; a request for its status.
FAIL, ASK = b"F", b"A"
# To the rank: a request for its numbers. From the rank: these, as JSON.
NUMBERS = b"R"
# To the rank: raise this signal if the program handles it. From the rank: the program does not.
SIGNAL = b"S"
# From the rank: it has received this signal, by which all ranks should stop.
WARNED = b"W"
# From the rank: it lacks the socket by which MPI talks to the starter. To the rank: that descriptor, if there is one.
DESCRIPTOR = b"D"
# From the rank: it waits in init() for the table of the ranks. To the rank: the table.
TABLE = b"G"
# To the rank: the hosts of an elastic job have changed.
UPDATED = b"H"
VARIABLE = "SIRTAKI_SUPERVISOR"
ADDRESS_VARIABLE = "SIRTAKI_WORKER_ADDRESS"
_LONGEST = 1 << 18


class RankLink:
    """on_message(kind, content); on_loss(process): called if a process disconnects without leaving normally."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_message: Callable[[bytes, bytes], None],
        on_loss: Callable[[int], None],
    ) -> None:
        self.name = f"sirtaki-{secrets.token_hex(16)}"
        self._selector = selector
        self._on_message = on_message
        self._on_loss = on_loss
        self._connection: socket.socket | None = None
        self._process = 0
        self._lost = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.name)
        self._listener.listen()
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def joined(self) -> bool:
        """Whether a process of the rank has called init and is connected."""
        return self._process != 0

    def process(self) -> int:
        """The id of that process, 0 if there is none."""
        return self._process

    def was_lost(self) -> bool:
        """Whether the last process that called init has ended, or would end now, without leaving normally."""
        return self._lost or self.joined()

    def fail(self, cause: dict[str, Any]) -> None:
        """Makes every collective of the rank fail with this cause."""
        fields = [str(cause[name]).replace("\n", " ") for name in ("kind", "rank", "host", "time", "site")]
        self._send(FAIL + "\n".join([*fields, cause["text"]]).encode(errors="replace")[: _LONGEST // 4])

    def ask(self) -> bool:
        return self._send(ASK)

    def ask_numbers(self) -> bool:
        return self._send(NUMBERS)

    def answer(self, table: dict[str, Any]) -> bool:
        return self._send(TABLE + json.dumps(table).encode())

    def update(self, content: bytes) -> bool:
        return self._send(UPDATED + content)

    def pass_on(self, number: int) -> bool:
        return self._send(SIGNAL + bytes([number]))

    def give(self, descriptor: int) -> None:
        """Sends a descriptor of this process to the rank; -1 for none."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._connection, [DESCRIPTOR], [descriptor] if descriptor >= 0 else [])

    def drain(self) -> None:
        """Reads the remaining messages of an ended process, also if its connection was not accepted yet."""
        self._read_all()
        while self._accept(self._listener, selectors.EVENT_READ):
            self._read_all()

    def _read_all(self) -> None:
        while self._connection is not None and self._receive(self._connection, selectors.EVENT_READ):
            pass

    def _send(self, message: bytes) -> bool:
        if self._connection is None:
            return False
        with contextlib.suppress(OSError):  # it is about to end, or does not read
            self._connection.send(message)
            return True
        return False

    def _accept(self, listener: socket.socket, events: int) -> bool:
        """False if nobody waits."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return False
        self._read_all()  # the rank may have left and joined again since the last read
        user = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user != os.geteuid() or self._connection is not None:
            connection.close()
            return True
        connection.setblocking(False)
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, self._receive)
        return True

    def _receive(self, connection: socket.socket, events: int) -> bool:
        """False if there was no message, or if it has been read since the event was reported."""
        if connection is not self._connection:
            return False
        try:
            message = connection.recv(_LONGEST)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # once, if it has ended without reading all; its own messages are still there
            return True
        except OSError:
            message = b""
        if not message:
            self._lose(connection)
            return False
        kind, content = message[:1], message[1:]
        if kind == JOINS:
            self._process = json.loads(content)["process"]
            self._lost = False
        elif kind == LEAVES:
            self._process = 0
        self._on_message(kind, content)
        return True

    def _lose(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._connection = None
        process, self._process = self._process, 0
        self._lost = process != 0
        if process:
            self._on_loss(process)
