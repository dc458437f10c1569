"""The job status: the launcher collects it from the ranks, for `sirtakirun status` and `top`, and for SIGUSR1.

A client connects to the launcher's Unix socket, and gets the text when the ranks have answered or their time is over.
The socket is in the abstract namespace, so no file stays however the launcher ends. Any user can connect to it, so both
ends check the other's user, which the kernel reports.
"""

import contextlib
import json
import os
import secrets
import selectors
import shlex
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sirtaki.host.timers import NEVER
from sirtaki.job.launcher.workers import Worker, Workers
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.time_limits import STATUS_OF_ALL

TITLE, STATUS, NUMBERS = b"?", b"!", b"#"  # requests on the socket of the job
_LONGEST_TITLE = 120


def user_of_peer(connection: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end, as the kernel reports them."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def name_begins(user: int) -> str:
    """The prefix of the socket names of this user's launchers."""
    return f"sirtaki-status-{user}-"


def listen() -> socket.socket:
    """The socket for status requests. Raises OSError.

    Process ids alone are not unique if containers share a network, and another user can take a predictable name.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name_begins(os.geteuid())}{os.getpid()}-{secrets.token_hex(8)}")
    listener.listen()
    listener.setblocking(False)
    return listener


def title(command: Sequence[str], ranks: int, restart: int = 0) -> str:
    """Describes a job that this launcher starts now."""
    words = shlex.join(command)
    shown = words if len(words) <= _LONGEST_TITLE else words[: _LONGEST_TITLE - 3] + "..."
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    how = f"restart {restart}" if restart else "started"
    return f"job {os.getpid()}: {ranks} rank{'s' if ranks > 1 else ''} of {shown}, {how} at {since}"


@dataclass
class _Round:
    """One request to the ranks. waiting: ranks that have not answered."""

    until: float
    waiting: set[int]
    answers: dict[int, str] = field(default_factory=dict)
    reply: list[Callable[[str], None]] = field(default_factory=list)


class Status:
    """Asks the ranks, and sends the text to all clients that asked meanwhile; one request of a kind at a time.

    The kinds are ASK, for people to read, and NUMBERS, which become a JSON object. title: the job in one line. ranks:
    number of ranks. shown: the ranks in the text; in an elastic job the numbers of its processes.
    """

    def __init__(self, selector: selectors.BaseSelector, workers: Workers, title: str, ranks: int) -> None:
        self._selector = selector
        self._workers = workers
        self._title = title
        self._ranks = ranks
        self.shown: Sequence[int] = range(ranks)
        self._listener: socket.socket | None = None
        self._rounds: dict[int, _Round] = {}  # by kind
        self._ended: dict[int, int] = {}  # exit codes of ranks that have ended

    def serve(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def ask(self, reply: Callable[[str], None], kind: int = channel.ASK) -> None:
        """Calls `reply` with the text, at most some seconds later."""
        if kind not in self._rounds:
            self._rounds[kind] = _Round(time.monotonic() + STATUS_OF_ALL, self._workers.ask_all(kind))
        self._rounds[kind].reply.append(reply)
        self.look()

    def due(self) -> float:
        """The latest time for the next call of look()."""
        return min((current.until for current in self._rounds.values()), default=NEVER)

    def on_answer(self, worker: Worker, text: str, kind: int = channel.ASK) -> None:
        if kind in self._rounds:
            self._rounds[kind].answers[worker.rank] = text
            self._rounds[kind].waiting.discard(worker.rank)
            self.look()

    def on_end(self, rank: int, code: int | None) -> None:
        """The rank has ended and will not answer."""
        if code is not None:
            self._ended[rank] = code
        for current in self._rounds.values():
            current.waiting.discard(rank)
        self.look()

    def all_ended_well(self) -> bool:
        """Whether every rank has ended with exit code 0, or asks for a new start of the job."""
        return len(self._ended) == self._ranks and set(self._ended.values()) <= {0, os.EX_TEMPFAIL}

    def look(self) -> None:
        now = time.monotonic()
        for kind, current in list(self._rounds.items()):
            if current.waiting and now < current.until:
                continue
            del self._rounds[kind]
            text = self._compose(current) if kind == channel.ASK else self._numbers(current)
            for reply in current.reply:
                reply(text)

    def _numbers(self, current: _Round) -> str:
        """{"title", "ranks": [the numbers of each rank, null without an answer]}."""
        ranks = [_parsed(current.answers.get(rank, "")) for rank in self.shown]
        return json.dumps({"title": self._title, "ranks": ranks})

    def _compose(self, current: _Round) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{self._title}; now {now}"]
        for rank in self.shown:
            if rank in current.answers:
                lines.append(current.answers[rank])
            else:
                lines.append(f"rank {rank}{self._without_answer(rank)}")
        return "\n".join(lines) + "\n"

    def _without_answer(self, rank: int) -> str:
        if rank in self._ended:
            return f" has ended, by {_how(self._ended[rank])}"
        host = self._workers.host_of(rank)
        if host == "?":
            return " has not started yet" if rank not in self._workers.arrived else " is gone"
        return f" on host {host} does not answer, nor does its supervisor process"

    def _accept(self, listener: socket.socket, events: int) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if user_of_peer(connection)[1] not in (os.geteuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, self._on_word)

    def _on_word(self, connection: socket.socket, events: int) -> None:
        """Answers TITLE, for a list of jobs, STATUS or NUMBERS."""
        self._selector.unregister(connection)
        try:
            word = connection.recv(1)
        except OSError:
            word = b""
        if word == STATUS:
            self.ask(lambda text: self._send(connection, text))
        elif word == NUMBERS:
            self.ask(lambda text: self._send(connection, text), channel.NUMBERS)
        else:
            self._send(connection, self._title)

    def _send(self, connection: socket.socket, text: str) -> None:
        """Sends only as much as the kernel takes, so that a client that does not read blocks nothing."""
        with contextlib.suppress(OSError), connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            connection.settimeout(1.0)
            connection.sendall(text.encode(errors="replace"))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
