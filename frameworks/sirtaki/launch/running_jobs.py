"""The jobs of this user's launchers on this host, and what their launchers answer."""

import os
import socket
import sys
from collections.abc import Mapping

from sirtaki.job.launcher.status import TITLE, name_begins, user_of_peer
from sirtaki.job.protocol.time_limits import STATUS_OF_ALL

_TABLE = "/proc/net/unix"
_CONNECT_SECONDS = 2.0


def choose(wanted: int | None, command: str) -> str:
    """The socket's name of the job with this process id, or of the only job; "" after a message if there is none.

    command: of sirtakirun, for an example in the message.
    """
    found: dict[int, str] = {}
    for name in names():
        try:
            process, connection = connect(name)
        except OSError:
            continue  # it has just ended
        connection.close()
        found[process] = name
    if wanted is None and len(found) == 1:
        return next(iter(found.values()))
    if wanted in found:
        return found[wanted]
    explain(wanted, found, command)
    return ""


def names() -> list[str]:
    """The names of sockets of this user's launchers on this host, with "@" in place of the leading zero byte."""
    begin = "@" + name_begins(os.geteuid())
    with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.split(maxsplit=7) for line in file if begin in line]
    return sorted({entry[7].strip() for entry in fields if len(entry) == 8 and entry[7].startswith(begin)})


def name_of(listener: socket.socket) -> str:
    """The name, as names() gives it, of a socket for status requests."""
    return "@" + listener.getsockname()[1:].decode()


def connect(name: str) -> tuple[int, socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect("\0" + name[1:])
        process, user = user_of_peer(connection)
        if user != os.geteuid():  # any user can choose this name
            raise PermissionError(f"{name} is another user's")
    except OSError:
        connection.close()
        raise
    return process, connection


def ask(name: str, word: bytes) -> str:
    """The launcher's answer; "" without one."""
    text = b""
    try:
        _, connection = connect(name)
    except OSError:
        return ""
    with connection:
        try:
            connection.settimeout(_CONNECT_SECONDS + STATUS_OF_ALL + 2)
            connection.sendall(word)
            while piece := connection.recv(1 << 16):
                text += piece
        except OSError:
            return ""
    return text.decode(errors="replace")


def explain(wanted: int | None, found: Mapping[int, str], command: str) -> None:
    """Prints which jobs there are. found: the sockets' names by process id."""

    def show(line: str) -> None:
        print(f"sirtakirun: {line}", file=sys.stderr)

    if wanted is not None:
        show(f"process {wanted} is not a sirtakirun of this user on this host, or it does not answer")
    others = {job: ask(name, TITLE) for job, name in found.items() if job != wanted}
    if not others:
        show("this user has no running job on this host; run the command on the host of sirtakirun")
        return
    example = f"sirtakirun {command} {min(others)}"
    show(f"jobs of this user on this host; choose one by its number, for example: {example}")
    for _, title in sorted(others.items()):
        show(title or "a job that does not answer")
