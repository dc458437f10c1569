"""The flight recorder's records, as the core gives them to Python."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_FORM = struct.Struct("<qQIiHBBI")
SIZE = _FORM.size
PLANNED = 0x8000  # bit of `group`: a batch of a locked plan


class Kind(IntEnum):
    """core.RECORD_KINDS has the same names in the same order."""

    SUBMITTED = 0
    VOTED = 1
    AGREED = 2
    BATCH_READY = 3
    BATCH_BEGIN = 4
    ALL_ARRIVED = 5
    TRANSFERRED = 6
    BATCH_END = 7
    COMPLETED = 8
    WAIT_BEGIN = 9
    WAIT_END = 10
    STEP_END = 11
    PLAN_LOCKED = 12
    PLAN_LEFT = 13
    IDLE = 14


class Record(NamedTuple):
    """time: ns of CLOCK_MONOTONIC. bytes: of the batch or request; of AGREED on rank 0: ns from the first vote to the
    last. peer: of AGREED on rank 0 the rank that was last; of BATCH_END the outcome, 2 if a rank called it off.
    """

    time: int
    bytes: int
    number: int
    peer: int
    group: int
    kind: int
    verb: int
    name: int


def encode(record: Record) -> bytes:
    return _FORM.pack(*record)


def decode(data: bytes) -> Iterator[Record]:
    return map(Record._make, _FORM.iter_unpack(data))
