"""This rank's line to the launcher's process beside it, which watches over it if `sirtakirun` started the job.

The line is a Unix socket in the abstract namespace, so that nothing of it stays; both ends look at the other's user.
The kernel keeps messages whole. The first letter of each says what it is; launch/rank_line.py is the other end.
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

_line: socket.socket | None = None
_process = 0


def join(limit: float) -> int:
    """Says that this process is the rank's and calls init(), which waits so many seconds for the others.

    Returns the line's descriptor, -1 where no launcher is.
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
    except OSError:  # of a launcher that is gone, or of a job around this one
        line.close()
        return False
    _line, _process = line, os.getpid()
    return True


def take_starter_line() -> int | None:
    """A new descriptor of the socket by which MPI talks to its starter, from the process beside this rank, which has it
    open. None where no launcher is. Raises SirtakiInternalError if the job has failed meanwhile.
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


def up() -> None:
    """init() is over: from now on the core answers what the launcher asks."""
    _send(b"U")


def failed() -> None:
    """init() has raised an exception. The program may catch it, and may call init() again."""
    _send(b"N")


def _send(message: bytes) -> None:
    if _line is not None:
        with contextlib.suppress(OSError):
            _line.send(message)


def is_there() -> bool:
    return _line is not None and _process == os.getpid()


def report(cause: Mapping[str, Any], trace: str, exit_code: int) -> bool:
    """Leaves it to the launcher to print what ends the job; False where no launcher is.

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
    """As report(), of a rank that has not joined the job, or has left it, and that prints what it has to say itself."""
    if is_there() or _connect():
        report(cause, "", exit_code)


def _packed(message: dict[str, Any]) -> bytes:
    """The end of a long traceback and the beginning of a long text: a letter takes up to twelve bytes."""
    while len(data := json.dumps(message).encode()) > _LONGEST:
        trace, text = message["trace"], message["text"]
        message = {**message, "trace": trace[-(len(trace) // 2) :], "text": text[: max(1, len(text) // 2)]}
    return data


def leave() -> None:
    """This process has left the job in order."""
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
