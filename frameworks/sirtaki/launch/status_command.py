"""`sirtakirun status [job]`: finds the jobs of this user's launchers on this host, and prints one's status."""

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from sirtaki.launch.job.status import PATIENCE, name_begins, user_of_peer

_TABLE = "/proc/net/unix"
_CONNECT_SECONDS = 2.0


def main(words: Sequence[str]) -> int:
    """Returns 0 after printing a job's status; 1 if there is no job, or several to choose from."""
    parser = argparse.ArgumentParser(
        prog="sirtakirun status",
        description="Prints the status of a running job: for each rank the last collective that finished, the pending "
        "ones and since when, and the Python stacks. kill -USR1 of the launcher or of a rank prints the same.",
    )
    parser.add_argument(
        "job", nargs="?", type=int, help="process id of its sirtakirun; not needed if only one job runs"
    )
    wanted = parser.parse_args(words).job
    jobs: dict[int, socket.socket] = {}
    for name in names():
        try:
            jobs.update([_connect(name)])
        except OSError:
            continue  # it has just ended
    if wanted is None and len(jobs) == 1:
        wanted = next(iter(jobs))
    text = _ask(jobs[wanted], b"!") if wanted in jobs else ""
    if text:
        print(text, end="")
        return 0
    _explain(wanted, {job: _ask(connection, b"?") for job, connection in jobs.items() if job != wanted})
    return 1


def names() -> list[str]:
    """The names of sockets of this user's launchers on this host, with "@" in place of the leading zero byte."""
    begin = "@" + name_begins(os.geteuid())
    with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.split(maxsplit=7) for line in file if begin in line]
    return sorted({entry[7].strip() for entry in fields if len(entry) == 8 and entry[7].startswith(begin)})


def _connect(name: str) -> tuple[int, socket.socket]:
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


def _ask(connection: socket.socket, word: bytes) -> str:
    """The launcher's answer; "" without one."""
    text = b""
    with connection:
        try:
            connection.settimeout(_CONNECT_SECONDS + PATIENCE + 2)
            connection.sendall(word)
            while piece := connection.recv(1 << 16):
                text += piece
        except OSError:
            return ""
    return text.decode(errors="replace")


def _explain(wanted: int | None, others: dict[int, str]) -> None:
    def show(line: str) -> None:
        print(f"sirtakirun: {line}", file=sys.stderr)

    if wanted is not None:
        show(f"process {wanted} is not a sirtakirun of this user on this host, or it does not answer")
    if not others:
        show("this user has no running job on this host; run the command on the host of sirtakirun")
        return
    show("jobs of this user on this host; choose one by its number, for example: sirtakirun status " + str(min(others)))
    for _, title in sorted(others.items()):
        show(title or "a job that does not answer")
