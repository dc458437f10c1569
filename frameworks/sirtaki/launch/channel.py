"""What launcher and workers say to each other: frames on a socket, private to the job.

A worker on the launcher's own host connects to a unix socket in the job's directory, which only this user can enter.
A worker elsewhere connects by TCP and proves that it holds the job's token, by an HMAC over a nonce of the launcher.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

# From a worker: who it is, output of its program, and how the program ended.
HELLO, OUT, ERR, EXIT = 1, 2, 3, 4
# From the launcher: end the program with this signal.
END = 5

NONCE_BYTES = 16
PROOF_BYTES = 32
_HEADER = struct.Struct(">BI")
_LONGEST = 1 << 24  # no frame is longer; a larger length means that the peer is not one of ours
_CONNECT_SECONDS = 5.0


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames (kind, payload) that are complete with these bytes. Raises ValueError for what is no frame."""
        self._bytes += data
        while len(self._bytes) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._bytes)
            if length > _LONGEST:
                raise ValueError(f"a frame of {length} bytes: not from this job")
            end = _HEADER.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_HEADER.size : end])
            del self._bytes[:end]
            yield kind, payload


def frame(kind: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def proof(token: bytes, nonce: bytes) -> bytes:
    import hmac  # a local worker never needs it, and it costs a few milliseconds

    return hmac.digest(token, nonce, "sha256")


def connect_local(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def connect_remote(addresses: Sequence[str], port: int, token: bytes) -> socket.socket:
    """Connects to the first address that answers as the launcher. Raises OSError naming each address and its error."""
    failures = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
            nonce = _exactly(connection, NONCE_BYTES)
            connection.sendall(proof(token, nonce))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return connection
        except OSError as error:
            failures.append(f"{address} port {port}: {error}")
    raise OSError(errno.EHOSTUNREACH, "cannot reach the launcher: " + "; ".join(failures) + _firewall_hint())


def _firewall_hint() -> str:
    return (
        f". Host {socket.gethostname()} must be able to open TCP connections to the host of sirtakirun; choose "
        f"the network there with --network-interfaces (pid {os.getpid()})"
    )


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError(errno.ECONNRESET, "closed before it said who it is")
        data += piece
    return data
