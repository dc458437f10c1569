"""Numbers calls without a name. The numbers are equal on all ranks that make the same calls in the same order."""

from __future__ import annotations

from collections import Counter

_counts: Counter[tuple[str, int]] = Counter()


def next_number(verb: str, process_set: int) -> int:
    """Counts the unnamed calls of one verb on one process set, from 1."""
    key = (verb, process_set)
    _counts[key] += 1
    return _counts[key]


def reset() -> None:
    """Starts to count anew; called when a new job begins."""
    _counts.clear()
