"""Which process of a rank's program gets a signal: its own first, its children when it has ended.

Data loaders' workers die of SIGTERM, and a program whose workers die cannot write its checkpoint any more. A scheduler
may send a signal to every process of a step. It then reaches the program by itself, and is not sent a second time: that
would interrupt the program's handler by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from sirtaki import processes

# Schedulers send them as a warning. Only the program's handler is meant; helpers ignore them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def ignore_warnings() -> None:
    """For a process that runs no program of the user's, and for what it starts."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)


class ProgramSignals:
    """number: the signal that the processes are to end by, 0 while they may go on."""

    def __init__(self) -> None:
        self.number = 0
        self._asked: set[int] = set()
        self._sent_to_all: set[int] = set()

    def note_sent_to_all(self, numbers: Iterable[int]) -> None:
        """The process beside the rank has got these signals itself, so that the program has got them, too."""
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


def has_handler(pid: int, number: int) -> bool:
    """Whether the process catches this signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def own_children(among: Iterable[int]) -> list[int]:
    """Those of the processes whose parent is this one; orphans below it become its children."""
    return [pid for pid in among if processes.parent(pid) == os.getpid()]
