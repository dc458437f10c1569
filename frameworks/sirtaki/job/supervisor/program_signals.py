"""Which process of a rank's program gets a signal: first the program's own, after its end its children.

Workers of data loaders die of SIGTERM, and without its workers a program can no longer write its checkpoint. A
scheduler may send a signal to every process of a step. The program then gets it directly, so it is not sent again: a
second signal would interrupt the program's handler.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from sirtaki.host import processes
from sirtaki.host.signals import PASSED_ON

_WINDOW = 0.5  # seconds within which a signal to all processes arrives both directly and through the launcher


class ProgramSignals:
    """number: the signal by which the processes should end, 0 while they may continue."""

    def __init__(self) -> None:
        self.number = 0
        self._asked: set[int] = set()
        self._sent_to_all: set[int] = set()

    def note_sent_to_all(self, numbers: Iterable[int]) -> None:
        """The supervisor has received these signals directly, so the program has received them, too."""
        self._sent_to_all.update(numbers)

    def came_from_outside(self) -> bool:
        return bool(self._sent_to_all)

    def ask(self, pids: Iterable[int]) -> None:
        """Asks each of these processes once."""
        for pid in pids:
            if pid not in self._asked:
                self._asked.add(pid)
                if self.number not in self._sent_to_all:
                    processes.send([pid], self.number)


class Warnings:
    """Signals that the launcher passes on, unless the sender has also signalled the program directly."""

    def __init__(self) -> None:
        self._received: dict[int, float] = {}
        self._waiting: dict[int, float] = {}

    def note_received(self, numbers: Iterable[int]) -> None:
        """The supervisor has received these signals directly."""
        self._received.update(dict.fromkeys({*PASSED_ON, signal.SIGTERM}.intersection(numbers), time.monotonic()))

    def pass_on(self, number: int) -> None:
        self._waiting.setdefault(number, time.monotonic() + _WINDOW)

    def due(self) -> float:
        """The time of the next call of take()."""
        return min(self._waiting.values(), default=float("inf"))

    def take(self, now: float) -> list[int]:
        """The due signals that the program has not received directly."""
        over = [number for number, at in self._waiting.items() if now >= at]
        for number in over:
            del self._waiting[number]
        return [number for number in over if now - self._received.get(number, -float("inf")) > 2 * _WINDOW]


def has_handler(pid: int, number: int) -> bool:
    """Whether the process catches this signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def own_children(among: Iterable[int]) -> list[int]:
    """The processes in `among` that are children of this one; orphans below it become its children."""
    return [pid for pid in among if processes.parent(pid) == os.getpid()]
