"""How a job stands: the launcher gathers it from the ranks, for `sirtakirun status` and for SIGUSR1 to itself.

Whoever asks connects to a Unix socket of the launcher's, and gets the text once the ranks have answered or have had
their time. The socket is in the abstract namespace, so that nothing of it stays however the launcher ends. Anybody can
connect to that, so both ends look at the other's user, whom the kernel names.
"""

import contextlib
import os
import secrets
import selectors
import shlex
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sirtaki.launch.workers import Worker, Workers

PATIENCE = 4.0  # seconds that ranks have; their own engines answer within three
_LONGEST_TITLE = 120
_NEVER = float("inf")


def user_of_peer(connection: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end, as the kernel knows them."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def name_begins(user: int) -> str:
    """How the sockets of this user's launchers are called."""
    return f"sirtaki-status-{user}-"


def listen() -> socket.socket:
    """The socket that is asked. Raises OSError.

    Process ids alone are not unique where containers share a network, and a name that can be guessed can be taken.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name_begins(os.geteuid())}{os.getpid()}-{secrets.token_hex(8)}")
    listener.listen()
    listener.setblocking(False)
    return listener


def title(command: Sequence[str], ranks: int) -> str:
    """Names a job whose launcher is this process, started now."""
    words = shlex.join(command)
    shown = words if len(words) <= _LONGEST_TITLE else words[: _LONGEST_TITLE - 3] + "..."
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"job {os.getpid()}: {ranks} rank{'s' if ranks > 1 else ''} of {shown}, started at {since}"


@dataclass
class _Round:
    """One question to the ranks. waiting: those that have not answered."""

    until: float
    waiting: set[int]
    answers: dict[int, str] = field(default_factory=dict)
    tell: list[Callable[[str], None]] = field(default_factory=list)


class Status:
    """Asks the ranks and tells whoever wanted to know; one question at a time, shared by all who ask meanwhile.

    title: what the job is, in a line. ranks: of the job.
    """

    def __init__(self, selector: selectors.BaseSelector, workers: Workers, title: str, ranks: int) -> None:
        self._selector = selector
        self._workers = workers
        self._title = title
        self._ranks = ranks
        self._listener: socket.socket | None = None
        self._round: _Round | None = None
        self._ended: dict[int, int] = {}  # exit codes of ranks that have ended

    def serve(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def ask(self, tell: Callable[[str], None]) -> None:
        """`tell` is called with the text, some seconds later at most."""
        if self._round is None:
            self._round = _Round(time.monotonic() + PATIENCE, self._workers.ask_all())
        self._round.tell.append(tell)
        self.look()

    def due(self) -> float:
        """When look() is to be called at the latest."""
        return self._round.until if self._round else _NEVER

    def on_answer(self, worker: Worker, text: str) -> None:
        if self._round is not None:
            self._round.answers[worker.rank] = text
            self._round.waiting.discard(worker.rank)
            self.look()

    def on_end(self, rank: int, code: int | None) -> None:
        """The rank has ended; it answers no more."""
        if code is not None:
            self._ended[rank] = code
        if self._round is not None:
            self._round.waiting.discard(rank)
            self.look()

    def look(self) -> None:
        current = self._round
        if current is None or (current.waiting and time.monotonic() < current.until):
            return
        self._round = None
        text = self._compose(current)
        for tell in current.tell:
            tell(text)

    def _compose(self, current: _Round) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{self._title}; now {now}"]
        for rank in range(self._ranks):
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
        return f" on host {host} does not answer, nor does the process that watches it"

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
        """ "?" asks for the job's title, as a list of jobs needs no more of each; "!" for all."""
        self._selector.unregister(connection)
        try:
            word = connection.recv(1)
        except OSError:
            word = b""
        if word == b"!":
            self.ask(lambda text: self._send(connection, text))
        else:
            self._send(connection, self._title)

    def _send(self, connection: socket.socket, text: str) -> None:
        """A reader of the same user that does not read holds nothing up: the kernel takes what fits."""
        with contextlib.suppress(OSError), connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            connection.settimeout(1.0)
            connection.sendall(text.encode(errors="replace"))


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
