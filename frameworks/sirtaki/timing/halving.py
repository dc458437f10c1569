"""The tuner's search: few candidates, measured by the time of whole steps; it knows no ranks and no clock."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WORTH = 0.03  # what a candidate must win, each time that it is compared, to be kept
_COMPARISONS = 2


class Candidate(NamedTuple):
    """bucket: the size of buckets, as a factor of the usual one. threshold: of fusion, in bytes."""

    bucket: float
    threshold: int


@dataclass(frozen=True)
class Result:
    """kept: the present one if nothing was won. won: part of the step's time. step: seconds, with `kept`."""

    kept: Candidate
    won: float
    step: float


# Yields a candidate and how many samples of it are wanted; is sent the median time of its steps.
Search = Generator[tuple[Candidate, int], float, Result]


def candidates(present: Candidate) -> list[Candidate]:
    """The present one first."""
    bucket, threshold = present
    others = (
        Candidate(bucket / 4, threshold),
        Candidate(bucket * 4, threshold),
        Candidate(bucket, 0),
        Candidate(bucket, 16 << 20),
    )
    return [present, *(other for other in others if other != present)]


def halving(choices: Sequence[Candidate]) -> Search:
    """Measures all, then the faster half for twice as long, and so on. Then compares the winner with the first one."""
    present, left, samples = choices[0], list(choices), 1
    times: dict[Candidate, float] = {}
    while len(left) > 1:
        for choice in left:
            times[choice] = yield choice, samples
        left = sorted(left, key=lambda choice: times[choice])[: len(left) // 2]
        samples *= 2
    best = left[0]
    if best == present:
        return Result(present, 0.0, times[present])
    gains = []
    for _ in range(_COMPARISONS):
        before = yield present, samples
        after = yield best, samples
        gains.append(1 - after / before)
        if gains[-1] < WORTH:
            return Result(present, 0.0, before)
    return Result(best, min(gains), after)
