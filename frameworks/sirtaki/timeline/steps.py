"""Which steps of a job a timeline shows."""

from __future__ import annotations


class Steps:
    """Which steps are wanted: from `first` on, and before `end` if it is not None. Counted from 0 at the beginning."""

    def __init__(self, first: int = 0, end: int | None = None) -> None:
        self._first, self._end = first, end
        self.ended = 0
        self._since: int | None = None if first else -1
        self._until: int | None = None

    def count(self, time: int) -> None:
        self.ended += 1
        if self.ended == self._first:
            self._since = time
        if self.ended == self._end:
            self._until = time

    def has(self, begin: int) -> bool:
        """Whether something that began then belongs to a wanted step."""
        return self._since is not None and begin >= self._since and (self._until is None or begin < self._until)

    def over(self) -> bool:
        return self._until is not None


def parse_steps(text: str) -> Steps:
    """ "A:B": steps A to B - 1; "A:": from A on. ValueError for another form."""
    first, colon, end = text.partition(":")
    well_formed = colon and (first or "0").isdecimal() and (end or "0").isdecimal()
    if not well_formed or (end and int(end) <= int(first or 0)):
        raise ValueError(f"{text!r} is no range of steps: A:B has the steps from A to B - 1, A: all from A on")
    return Steps(int(first or 0), int(end) if end else None)
