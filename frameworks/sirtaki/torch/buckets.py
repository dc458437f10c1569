"""Gradients on a GPU that travel as one request: there the host's work for each of many small ones is what counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.torch.units import DENSE, Slot, Unit

BUCKET_BYTES = 25 << 20


def bucketed(units: Sequence[Unit]) -> list[Unit]:
    """The units, those of one dense gradient on a GPU joined: neighbours of one dtype, in the order of backward.

    Depends on the parameters alone, so that all ranks make the same ones.
    """
    kept = [unit for unit in units if not _joins(unit)]
    open_buckets: dict[object, list[Slot]] = {}
    closed: list[list[Slot]] = []
    for unit in reversed([unit for unit in units if _joins(unit)]):
        (slot,) = unit.slots
        bucket = open_buckets.setdefault(slot.parameter.dtype, [])
        bucket.append(slot)
        if sum(member.parameter.nbytes for member in bucket) >= BUCKET_BYTES:
            closed.append(open_buckets.pop(slot.parameter.dtype))
    made = [*closed, *open_buckets.values()]
    return kept + [Unit(slots, f"allreduce.{slots[0].name}.and.{len(slots) - 1}", bucket=True) for slots in made]


def _joins(unit: Unit) -> bool:
    return len(unit.slots) == 1 and unit.slots[0].kind == DENSE and _is_on_gpu(unit.slots[0].parameter)


def _is_on_gpu(parameter: torch.Tensor) -> bool:
    return parameter.is_cuda
