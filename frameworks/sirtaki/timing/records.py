"""The records of the flight recorder, as Python objects. docs/timing.md explains the kinds."""

from __future__ import annotations

import struct
from typing import NamedTuple

from sirtaki.native import core

LAYOUT = struct.Struct("<qQIiHBBI")
PLANNED = 0x8000  # the bit of `group` in the records of a locked plan's batches
UNKNOWN = 0xFFFFFFFF  # as the age of an arrival


class Record(NamedTuple):
    """time: ns of CLOCK_MONOTONIC. bytes, peer, name: by kind. number: of the batch. group: process set."""

    time: int
    bytes: int
    number: int
    peer: int
    group: int
    planned: bool
    kind: str
    verb: int
    name: int


def decode(data: bytes) -> list[Record]:
    """data: from core.records(), by time. ValueError unless it consists of whole records."""
    if len(data) % LAYOUT.size:
        raise ValueError(f"{len(data)} bytes are not whole records of {LAYOUT.size} bytes")
    kinds = core.RECORD_KINDS
    return [
        Record(time, size, number, peer, group & ~PLANNED, bool(group & PLANNED), kinds[kind], verb, name)
        for time, size, number, peer, group, kind, verb, name in LAYOUT.iter_unpack(data)
    ]


def latest(count: int) -> list[Record]:
    """The last `count` records of this rank, the oldest first. Empty before init(), and with SIRTAKI_RECORDER=0."""
    data = core.records(0)[0]
    return decode(data[-count * LAYOUT.size :])
