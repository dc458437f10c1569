"""Numbers for calls that the program did not name; equal on all ranks as long as all make the same calls in order."""

from __future__ import annotations

from collections import Counter

_counts: Counter[tuple[str, int]] = Counter()


def next_number(verb: str, process_set: int) -> int:
    """Counts the nameless calls of one verb on one process set, from 1."""
    key = (verb, process_set)
    _counts[key] += 1
    return _counts[key]


def reset() -> None:
    """Starts over; a new job begins."""
    _counts.clear()
