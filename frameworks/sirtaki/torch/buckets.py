"""Gradients that travel as one request: what the host does for each of many small ones is what counts."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki.torch.units import DENSE, Slot, Unit

# Small enough that most of them travel while backward goes on, large enough that there are few: each wakes a thread.
BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 25 << 20}
# Nothing is left to be computed while the last one travels, so it holds no more than this part of a bucket.
_LAST = 1 / 16


def bucketed(units: Sequence[Unit]) -> list[Unit]:
    """The units, those of one dense gradient joined: neighbours of one dtype and device, in the order of backward.

    Depends on the parameters alone, so that all ranks make the same ones.
    """
    kept = [unit for unit in units if not _joins(unit)]
    by_kind: dict[object, list[Slot]] = {}
    for unit in reversed([unit for unit in units if _joins(unit)]):
        (slot,) = unit.slots
        by_kind.setdefault((slot.parameter.dtype, slot.parameter.device), []).append(slot)
    return kept + [_bucket(slots) for of_kind in by_kind.values() for slots in _cut(of_kind)]


def _cut(slots: list[Slot]) -> list[list[Slot]]:
    limit = BUCKET_BYTES[slots[0].parameter.device.type]
    last = len(slots)
    while last > 0 and _bytes(slots[last - 1 :]) <= limit * _LAST:
        last -= 1
    cut: list[list[Slot]] = [[]]
    for slot in slots[:last]:
        if _bytes(cut[-1]) >= limit:
            cut.append([])
        cut[-1].append(slot)
    return [part for part in (*cut, slots[last:]) if part]


def _bytes(slots: list[Slot]) -> int:
    return sum(slot.parameter.nbytes for slot in slots)


def _joins(unit: Unit) -> bool:
    return len(unit.slots) == 1 and unit.slots[0].kind == DENSE and unit.slots[0].parameter.device.type in BUCKET_BYTES


def _bucket(slots: list[Slot]) -> Unit:
    if len(slots) == 1:
        return slots[0].unit
    return Unit(slots[0].unit.step, slots, f"allreduce.{slots[0].name}.and.{len(slots) - 1}", bucket=True)
