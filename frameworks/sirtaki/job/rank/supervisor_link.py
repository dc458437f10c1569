"""This rank's socket to its supervisor, the launcher's process beside each rank if `sirtakirun` started the job.

The socket is in the abstract namespace, so no file stays; both ends check the other's user. The kernel keeps messages
whole. The first letter of a message is its kind; job/supervisor/rank_link.py is the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from sirtaki.exceptions import SirtakiInternalError

VARIABLE = "SIRTAKI_SUPERVISOR"  # the socket's name
_LONGEST = 100_000  # bytes of a message; the kernel takes some 200,000
_LONGEST_TABLE = 1 << 18

_line: socket.socket | None = None
_requests = 0
_announced = ""
_process = 0


def join(limit: float) -> int:
    """Reports that this process is the rank and calls init(). limit: seconds that init() waits for the other ranks.

    Returns the socket's descriptor, -1 without a launcher.
    """
    leave()
    if not _connect():
        return -1
    assert _line is not None
    try:
        _line.send(b"J" + json.dumps({"limit": limit, "process": os.getpid()}).encode())
    except OSError:
        leave()
        return -1
    return _line.fileno()


def _connect() -> bool:
    global _line, _process
    name = os.environ.get(VARIABLE, "")
    if not name:
        return False
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect("\0" + name)
        if _user_of_peer(line) != os.geteuid():
            raise PermissionError(f"{VARIABLE} names a socket of another user")
    except OSError:  # the launcher has ended, or the socket belongs to an outer job
        line.close()
        return False
    _line, _process = line, os.getpid()
    return True


def take_starter_socket() -> int | None:
    """A new descriptor of MPI's socket to its starter, from the supervisor, which has it open. None without a launcher.
    SirtakiInternalError if the job has failed meanwhile.
    """
    if _line is None:
        return None
    try:
        _line.send(b"D")
        while True:
            message, descriptors, _, _ = socket.recv_fds(_line, _LONGEST, 1)
            if message[:1] == b"F":
                raise SirtakiInternalError(message.decode(errors="replace").split("\n", 5)[-1])
            if message[:1] in (b"D", b""):
                return descriptors[0] if descriptors else None
    except OSError:
        return None


def ask_table(own: Mapping[str, Any]) -> dict[str, Any]:
    """Sends what the launcher needs to know of this rank. Returns its answer, which may take long.

    SirtakiInternalError if the job has failed meanwhile, or the launcher has ended.
    """
    global _requests, _announced
    assert _line is not None
    _requests += 1
    with contextlib.suppress(OSError):
        _line.send(b"G" + json.dumps({**own, "request": _requests}).encode())
        while message := _line.recv(_LONGEST_TABLE):
            if message[:1] == b"F":
                _announced = message.decode(errors="replace").split("\n", 5)[-1]
                raise SirtakiInternalError(_announced)
            answer = json.loads(message[1:]) if message[:1] == b"G" else {}
            if answer.get("request") == _requests:  # an earlier init() may have left without its answer
                return dict(answer)
    raise SirtakiInternalError("sirtakirun, which sends the ranks their addresses, has ended")


def has_announced(error: BaseException) -> bool:
    """Whether this error is the failure that the launcher has sent during init(). The launcher shows it itself."""
    return bool(_announced) and _announced in str(error)


def up() -> None:
    """Reports that init() has succeeded. From now on the core answers the launcher's requests."""
    _send(b"U")


def failed() -> None:
    """Reports that init() has raised an exception. The program may catch it and call init() again."""
    _send(b"N")


def _send(message: bytes) -> None:
    if _line is not None:
        with contextlib.suppress(OSError):
            _line.send(message)


def is_there() -> bool:
    return _line is not None and _process == os.getpid()


def report(cause: Mapping[str, Any], trace: str, exit_code: int) -> bool:
    """Leaves the failure message of the job to the launcher; False without a launcher.

    trace: of the exception, from the rank that recorded the cause; "" from the others.
    """
    if _line is None or not is_there():
        return False
    message = {**cause, "trace": trace, "code": exit_code}
    message.pop("description", None)
    try:
        _line.send(b"C" + _packed(message))
    except OSError:
        return False
    return True


def report_outside_job(cause: Mapping[str, Any], exit_code: int) -> None:
    """report() for a rank outside the job, before init() or after shutdown(). It prints its own error itself."""
    if is_there() or _connect():
        report(cause, "", exit_code)


def _packed(message: dict[str, Any]) -> bytes:
    """Shortens a traceback to its end and a text to its beginning; one letter may need twelve bytes."""
    while len(data := json.dumps(message).encode()) > _LONGEST:
        trace, text = message["trace"], message["text"]
        message = {**message, "trace": trace[-(len(trace) // 2) :], "text": text[: max(1, len(text) // 2)]}
    return data


def send_times(report: Mapping[str, Any]) -> bool:
    """Sends where the time of this rank's steps went. False without a launcher."""
    if not is_there():
        return False
    _send(b"T" + json.dumps(report).encode())
    return True


def warn(number: int) -> None:
    """Reports a signal by which the job should stop. The launcher passes it on to the other ranks."""
    if is_there():
        _send(b"W" + bytes([number]))


def leave() -> None:
    """Reports that this process has left the job normally."""
    global _line
    line, _line = _line, None
    if line is None:
        return
    if _process == os.getpid():
        with contextlib.suppress(OSError):
            line.send(b"L")
    line.close()


def _user_of_peer(line: socket.socket) -> int:
    return struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
