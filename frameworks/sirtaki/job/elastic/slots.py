"""The slots of an elastic job. After a failure a slot rests, so that what is broken does not fail in a fast loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sirtaki.job.elastic.actions import Slot


class Slots:
    def __init__(self) -> None:
        self._slots: dict[Slot, None] = {}  # a set that keeps the order
        self._resting: set[Slot] = set()
        self._failures: dict[Slot, int] = {}  # in a row

    def set(self, slots: Sequence[Slot]) -> None:
        """These slots may be used from now on."""
        self._slots = dict.fromkeys(slots)

    def __contains__(self, slot: object) -> bool:
        return slot in self._slots

    def free(self, busy: Collection[Slot]) -> list[Slot]:
        """Those in which a process may start, in their order."""
        return [slot for slot in self._slots if slot not in busy and slot not in self._resting]

    def rest(self, slot: Slot) -> int:
        """Begins a rest. Returns the number of failures in a row; 0 if it rests already, or is not used any more."""
        if slot not in self._slots or slot in self._resting:
            return 0
        self._resting.add(slot)
        self._failures[slot] = self._failures.get(slot, 0) + 1
        return self._failures[slot]

    def end_rest(self, slot: Slot) -> None:
        self._resting.discard(slot)

    def note_success(self, slot: Slot) -> None:
        """A process has worked there."""
        self._failures.pop(slot, None)

    def all_rest(self) -> bool:
        return bool(self._slots) and self._resting.issuperset(self._slots)
