"""Gradients that travel as one request: what the host does for each of many small ones is what counts."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki.torch.units import DENSE, Slot, Unit

# Small enough that most of them travel while backward goes on, large enough that there are few.
BUCKET_BYTES = {"cpu": 8 << 20, "cuda": 25 << 20}


def bucketed(units: Sequence[Unit]) -> list[Unit]:
    """The units, those of one dense gradient joined: neighbours of one dtype and device, in the order of backward.

    Depends on the parameters alone, so that all ranks make the same ones.
    """
    kept = [unit for unit in units if not _joins(unit)]
    open_buckets: dict[object, list[Slot]] = {}
    closed: list[list[Slot]] = []
    for unit in reversed([unit for unit in units if _joins(unit)]):
        (slot,) = unit.slots
        kind = (slot.parameter.dtype, slot.parameter.device)
        bucket = open_buckets.setdefault(kind, [])
        bucket.append(slot)
        if sum(member.parameter.nbytes for member in bucket) >= BUCKET_BYTES[slot.parameter.device.type]:
            closed.append(open_buckets.pop(kind))
    made = [*closed, *open_buckets.values()]
    return kept + [_bucket(slots) for slots in made]


def _joins(unit: Unit) -> bool:
    return len(unit.slots) == 1 and unit.slots[0].kind == DENSE and unit.slots[0].parameter.device.type in BUCKET_BYTES


def _bucket(slots: list[Slot]) -> Unit:
    if len(slots) == 1:
        return slots[0].unit
    return Unit(slots[0].unit.step, slots, f"allreduce.{slots[0].name}.and.{len(slots) - 1}", bucket=True)
