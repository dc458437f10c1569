"""How fast a rank goes, from two readings of its numbers; see docs/timeline.md for what the numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sirtaki.timing.text.summary_line import CAUSES

Numbers = Mapping[str, Any]  # of a rank, since its init(): counts, bytes, and times in ns


@dataclass(frozen=True)
class Rates:
    """Between two readings. steps, bytes: in a second. waiting, parts: shares of the steps' time. last: by rank, the
    share of steps in which it came last.
    """

    steps: float
    bytes: float
    waiting: float
    parts: dict[str, float]
    last: dict[int, float]


def rates(before: Numbers, after: Numbers, seconds: float) -> Rates:
    steps = after["steps"] - before["steps"]
    length = max(1, after["length"] - before["length"])
    parts = {part: (after[part] - before[part]) / length for part in CAUSES}
    last = {
        int(rank): (count - before["last"].get(rank, (0, 0))[0]) / max(1, steps)
        for rank, (count, _) in after["last"].items()
    }
    return Rates(steps / seconds, (after["bytes"] - before["bytes"]) / seconds, sum(parts.values()), parts, last)
