"""The protocol between launcher and workers: frames on a socket, private to the job.

A worker on the launcher's own host connects to a Unix socket in the job's directory, which only this user can enter. A
worker on another host connects by TCP. Each side then proves that it holds the job's token, by an HMAC over both
nonces, before it reads anything else.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

# From a worker: its rank, output of its program, and how the program ended.
HELLO, OUT, ERR, EXIT = 1, 2, 3, 4
# From the launcher: end the program with this signal.
END = 5
# From a worker: its rank has called init, has ended init, sends the failure cause, or its status.
JOINED, OVER, CAUSE, STATUS = 6, 11, 7, 10
# From the launcher, for the rank: the failure cause; a request for its status; its init takes too long.
FAIL, ASK, LATE = 8, 9, 12
# From the launcher: pass this signal on if the program handles it. From a worker: the program does not.
SIGNAL, UNHANDLED = 13, 14
# From a worker: its rank has received this signal itself, and all ranks should stop.
WARNED = 19
# From a worker: where the time of its rank's steps went.
TIMES = 17
# From the agent or remote shell of another host: the host is reached, or why not.
HOST = 16
# From the launcher: a request for the rank's numbers. From a worker: these, as JSON; empty if there are none.
NUMBERS = 18
# Without MPI. From a worker: its rank waits in init() for the table of the ranks. From the launcher: the table.
TABLE = 20
# From the launcher, for the rank: the hosts of an elastic job have changed.
UPDATED = 21

NONCE_BYTES = 16
PROOF_BYTES = 32
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
_HEADER = struct.Struct(">BI")
_LONGEST = 1 << 20  # a longer frame shows that the peer is another program
_CONNECT_SECONDS = 5.0


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the frames (kind, payload) that are complete with these bytes. ValueError if they are no frame."""
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


def answer(token: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """(a worker's answer to the launcher's nonce, the proof that it then expects from the launcher)."""
    own = os.urandom(NONCE_BYTES)
    return own + _proof(token, b"worker", nonce, own), _proof(token, b"launcher", nonce, own)


def proof_for(token: bytes, nonce: bytes, answered: bytes) -> bytes:
    """The launcher's proof for a worker with a correct answer. ValueError for a worker without the token."""
    import hmac

    own, proof = answered[:NONCE_BYTES], answered[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"worker", nonce, own)):
        raise ValueError("not a worker of this job")
    return _proof(token, b"launcher", nonce, own)


def key_of_ranks(token: bytes, nonce: bytes) -> bytes:
    """The secret by which ranks without MPI know each other. The launcher sends only the nonce."""
    import hmac

    return hmac.digest(token, b"ranks" + nonce, "sha256")


def _proof(token: bytes, who: bytes, nonce: bytes, own: bytes) -> bytes:
    import hmac  # imported here: takes milliseconds, and local workers never need it

    return hmac.digest(token, who + nonce + own, "sha256")


def connect_local(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def connect_remote(endpoints: Sequence[tuple[str, int]], token: bytes, lost_after: float = 0) -> socket.socket:
    """Connects to the first (address, port) where the launcher answers. OSError names each address and its error."""
    failures = []
    for address, port in endpoints:
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
            own, expected = answer(token, _exactly(connection, NONCE_BYTES))
            connection.sendall(own)
            _require(_exactly(connection, PROOF_BYTES), expected)
            notice_loss(connection, lost_after)
            connection.settimeout(None)
            return connection
        except OSError as error:
            failures.append(f"{address} port {port}: {error}")
    raise OSError(errno.EHOSTUNREACH, "cannot reach the launcher: " + "; ".join(failures) + _firewall_hint())


def notice_loss(connection: socket.socket, seconds: float) -> None:
    """Makes the kernel close the connection if its other end is silent for `seconds`; 0 for never."""
    if seconds <= 0 or connection.family == socket.AF_UNIX:
        return
    step = max(1, round(seconds / 4))
    for option, value in (
        (socket.TCP_KEEPIDLE, step),
        (socket.TCP_KEEPINTVL, step),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, round(seconds * 1000)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _require(proof: bytes, expected: bytes) -> None:
    import hmac

    if not hmac.compare_digest(proof, expected):
        raise OSError(errno.EPROTO, "another program answers there, not the launcher of this job")


def _firewall_hint() -> str:
    return (
        f". Host {own_host_name()} must be able to open TCP connections to the host of sirtakirun; choose "
        f"the network there with --network-interfaces (pid {os.getpid()})"
    )


def own_host_name() -> str:
    """The name of this host in messages."""
    return os.environ.get("SIRTAKI_HOSTNAME") or socket.gethostname()


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError(errno.ECONNRESET, "the other end closed the connection before it had identified itself")
        data += piece
    return data
