"""Names for the calls of a torch group, which have none.

torch matches the n-th call of each rank. So a name must not depend on the call itself: calls that differ then meet
under one name, and the error shows both. Names must also recur in each step, or the core could cache nothing. So a
name denotes the newest eight calls before this one: a function of what all ranks have agreed on.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

_MASK = (1 << 64) - 1
_SHIFT = 8  # bits; a call is forgotten after 64 / 8 calls
_RUN = 8  # equal calls that may be under way at once
_MANY = 4096  # histories that are kept


class _Place:
    """What is known of one history."""

    __slots__ = ("latest", "names")

    def __init__(self, stem: str) -> None:
        self.names = [f"{stem}.{number}" for number in range(_RUN)]
        self.latest: list[Any] = [None] * _RUN  # weak references to the core's works


class CallNames:
    """The names of one group's calls on this rank. Not for several threads at once, as torch's groups."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._generation = 0
        self._history = 0
        self._before = -1
        self._run = 0
        self._places: dict[int, _Place] = {}
        self._place = self._found()
        self.count = 0  # calls so far

    def next(self) -> str:
        """The name of the next call. Waits for an earlier call of that name that is still under way."""
        reference = self._place.latest[self._run]
        earlier = None if reference is None else reference()
        if earlier is not None and not earlier.done():
            with contextlib.suppress(Exception):  # reported to the caller that waits for it
                earlier.wait()
        return self._place.names[self._run]

    def submitted(self, work: Any, kind: int) -> None:
        """Notes the work of the name that next() gave. kind: a number that is equal on all ranks for equal calls."""
        self._place.latest[self._run] = weakref.ref(work)
        self.count += 1
        self._before, self._history = self._history, (self._history << _SHIFT ^ kind) & _MASK
        self._run = (self._run + 1) % _RUN if self._history == self._before else 0
        self._place = self._found()

    def restart(self) -> None:
        """After calls that differed: the ranks no longer have the same calls before them."""
        self._history, self._before, self._run = 0, -1, 0
        self._place = self._found()

    def _found(self) -> _Place:
        place = self._places.get(self._history)
        if place is None:
            if len(self._places) >= _MANY:
                self._places.clear()
                self._generation += 1  # the names before may still be in use
            stem = f"{self._prefix}.{self._generation}.{self._history:x}"
            place = self._places[self._history] = _Place(stem)
        return place
