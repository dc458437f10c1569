"""The rendezvous at MASTER_ADDR and MASTER_PORT: rank 0 listens there, and all others send it their addresses.

Rank 0 sends a nonce; the other rank answers with its own and a proof that it has the secret (SIRTAKI_SECRET); rank 0
answers with its proof. Each later message is a length, a proof of the message, and the message in JSON.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Any

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.rendezvous.table import SECRET_BYTES, Table, derive, listen

_GREETING = b"SIRTAKI rendezvous 1\n"
_NONCE = 16
_PROOF = 32
_YES, _NO = b"Y", b"N"
_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 24
_STRANGER_SECONDS = 10.0  # for a process that connects and proves nothing
_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 5.0  # rank 0 waits for the slowest rank, and then needs time to answer
_MOST_STRANGERS = 64


class RefusedError(ValueError):
    """The other end is no rank of this job; the text says why."""


class OtherProgramError(RefusedError):
    """The other end does not speak this protocol at all."""


class Line:
    """A connection between rank 0 and another rank, after both have proven that they have the secret."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self.connection, self._key = connection, key

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self.connection.sendall(_LENGTH.pack(len(data)) + hmac.digest(self._key, data, "sha256") + data)

    def receive(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(_exactly(self.connection, _LENGTH.size))
        if length > _LONGEST:
            raise RefusedError(f"it sends a message of {length} bytes")
        proof = _exactly(self.connection, _PROOF)
        data = _exactly(self.connection, length)
        if not hmac.compare_digest(proof, hmac.digest(self._key, data, "sha256")):
            raise RefusedError("its message was damaged")
        message = json.loads(data)
        if not isinstance(message, dict):
            raise RefusedError("it sends no message of this protocol")
        return message


def join(rank: int, size: int, master: tuple[str, int], secret: bytes, limit: float) -> Table:
    """Returns when all ranks have called it. SirtakiInternalError, on every rank, that names the ranks which have not
    come within `limit` seconds, or says why this process is no rank of the job.
    """
    if rank == 0:
        return lead(size, _server(master), secret, limit)
    try:
        return follow(rank, size, _connected(master, limit), master, secret, limit)
    except OtherProgramError as error:
        raise SirtakiInternalError(f"rank 0 at {master[0]} port {master[1]}: {error}") from None


def lead(size: int, server: socket.socket, secret: bytes, limit: float) -> Table:
    """join() for rank 0, to which the others connect through this socket. It is closed then."""
    return _Master(size, server, secret, limit).lead()


class _Master:
    def __init__(self, size: int, server: socket.socket, secret: bytes, limit: float) -> None:
        self._size, self._secret, self._limit = size, secret, limit
        self._end = time.monotonic() + limit
        self._server = server
        self._lines: dict[int, Line] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._refused: list[str] = []
        self._changed = threading.Condition()
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)

    def lead(self) -> Table:
        threading.Thread(target=self._accept, name="sirtaki rendezvous", daemon=True).start()
        try:
            with self._changed:
                everybody = self._changed.wait_for(
                    lambda: len(self._lines) == self._size - 1, max(0.0, self._end - time.monotonic())
                )
                problem = "" if everybody else self._problem()
        finally:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # ends accept()
            self._server.close()
        if problem:
            self._send_to_all({"error": problem})
            raise SirtakiInternalError(problem)
        return self._table()

    def _problem(self) -> str:
        missing = [rank for rank in range(1, self._size) if rank not in self._lines]
        ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        text = (
            f"{self._size - len(missing)} of {self._size} ranks arrived within {self._limit:g} s "
            f"(SIRTAKI_START_TIMEOUT), missing: {ranks}"
        )
        return "; ".join([text, *dict.fromkeys(self._refused)])

    def _table(self) -> Table:
        own = listen(_address_seen(self._lines[1].connection.getsockname()))
        nonce = os.urandom(SECRET_BYTES)
        table = [own.getsockname()[:2], *(self._addresses[rank] for rank in range(1, self._size))]
        self._send_to_all({"table": table, "nonce": nonce.hex()})
        return Table(0, [(host, port) for host, port in table], derive(self._secret, b"job", nonce), own)

    def _send_to_all(self, message: dict[str, Any]) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError), line.connection:
                line.send(message)

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._server.accept()
            except OSError:
                return
            if not self._strangers.acquire(timeout=_STRANGER_SECONDS):
                connection.close()
                continue
            threading.Thread(target=self._receive, args=(connection, peer[0]), daemon=True).start()

    def _receive(self, connection: socket.socket, host: str) -> None:
        try:
            connection.settimeout(_STRANGER_SECONDS)
            line = _prove(connection, self._secret)
            message = line.receive()
            connection.settimeout(None)
            self._add(line, message)
        except (OSError, ValueError, KeyError, TypeError) as error:
            connection.close()
            if isinstance(error, RefusedError):
                with self._changed:
                    self._refused.append(f"refused a process at {_address_seen((host,))}: {error}")
                    self._changed.notify_all()
        finally:
            self._strangers.release()

    def _add(self, line: Line, message: dict[str, Any]) -> None:
        rank, size = int(message["rank"]), int(message["size"])
        host, port = str(message["host"]), int(message["port"])
        with self._changed:
            problem = ""
            if size != self._size:
                problem = f"it has WORLD_SIZE={size}, rank 0 has WORLD_SIZE={self._size}"
            elif not 0 < rank < size:
                problem = f"it has RANK={rank} of WORLD_SIZE={size}"
            elif rank in self._lines:
                problem = f"two processes have connected as rank {rank}"
            if problem:
                line.send({"error": f"rank 0 refused this process: {problem}"})
                raise RefusedError(problem)
            self._lines[rank], self._addresses[rank] = line, (host, port)
            self._changed.notify_all()


def _prove(connection: socket.socket, secret: bytes) -> Line:
    own = os.urandom(_NONCE)
    connection.sendall(_GREETING + own)
    answered = _exactly(connection, _NONCE + _PROOF)
    theirs, proof = answered[:_NONCE], answered[_NONCE:]
    if not hmac.compare_digest(proof, derive(secret, b"rank", own, theirs)):
        connection.sendall(_NO)
        raise RefusedError("it has another SIRTAKI_SECRET")
    connection.sendall(_YES + derive(secret, b"rank 0", own, theirs))
    return Line(connection, derive(secret, b"messages", own, theirs))


def follow(
    rank: int, size: int, connection: socket.socket, master: tuple[str, int], secret: bytes, limit: float
) -> Table:
    """join() for another rank, over a connection to rank 0, which is closed then. OtherProgramError if another program
    has accepted it.
    """
    with connection:
        where = f"rank 0 at {master[0]} port {master[1]}"
        try:
            connection.settimeout(limit + _ANSWER_SECONDS)
            line = _prove_back(connection, secret)
            own = listen(_address_seen(connection.getsockname()))
            host, port = own.getsockname()[:2]
            line.send({"rank": rank, "size": size, "host": host, "port": port})
            answer = line.receive()
        except OtherProgramError:
            raise
        except RefusedError as error:
            raise SirtakiInternalError(f"{where}: {error}") from None
        except OSError as error:
            raise SirtakiInternalError(
                f"{where} has accepted the connection, but sent no table of the ranks: {error}"
            ) from None
        if "error" in answer:
            raise SirtakiInternalError(str(answer["error"]))
        addresses = [(str(host), int(port)) for host, port in answer["table"]]
        return Table(rank, addresses, derive(secret, b"job", bytes.fromhex(answer["nonce"])), own)


def _connected(master: tuple[str, int], limit: float) -> socket.socket:
    """Rank 0 may start later than this rank."""
    end = time.monotonic() + limit
    while True:
        try:
            return socket.create_connection(master, timeout=max(0.1, end - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > end:
                raise SirtakiInternalError(
                    f"rank 0 did not answer at MASTER_ADDR={master[0]} MASTER_PORT={master[1]} within {limit:g} s "
                    f"(SIRTAKI_START_TIMEOUT): {error}"
                ) from None
        time.sleep(_RETRY_SECONDS)


def _prove_back(connection: socket.socket, secret: bytes) -> Line:
    greeting = _exactly(connection, len(_GREETING))
    if greeting != _GREETING:
        raise OtherProgramError("another program listens there, not rank 0 of this job")
    theirs = _exactly(connection, _NONCE)
    own = os.urandom(_NONCE)
    connection.sendall(own + derive(secret, b"rank", theirs, own))
    if _exactly(connection, 1) != _YES:
        raise RefusedError("it refused this process, because SIRTAKI_SECRET is not the same on both")
    if not hmac.compare_digest(_exactly(connection, _PROOF), derive(secret, b"rank 0", theirs, own)):
        raise RefusedError("it does not have the SIRTAKI_SECRET of this process")
    return Line(connection, derive(secret, b"messages", theirs, own))


def _server(master: tuple[str, int]) -> socket.socket:
    """Listens at this address only; at all, if it belongs to a device that passes connections on to this host, or if
    its name is not known here yet.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(*master, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        with contextlib.suppress(OSError):
            return listen_everywhere(master[1])
        raise SirtakiInternalError(
            f"rank 0 cannot listen at MASTER_ADDR={master[0]} MASTER_PORT={master[1]}: {error}"
        ) from None


def listen_everywhere(port: int) -> socket.socket:
    """At all addresses of this host. port: 0 for any."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)


def _address_seen(name: tuple[Any, ...]) -> str:
    return str(name[0]).removeprefix("::ffff:")


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return data
