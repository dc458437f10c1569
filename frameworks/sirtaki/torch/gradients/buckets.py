"""Gradients that travel as one request: what the host does for each of many small ones is what counts."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki.torch.gradients.units import Slot

# Small enough that most of them travel while backward goes on, large enough that there are few: each wakes a thread.
BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 25 << 20}
# Nothing is left to be computed while the last one travels, so it holds no more than this part of a bucket.
_LAST = 1 / 16


def bucketed(slots: Sequence[Slot]) -> list[list[Slot]]:
    """The slots of dense gradients by bucket: neighbours of one dtype and device, in the order of backward.

    Depends on the parameters alone, so that all ranks make the same ones.
    """
    by_kind: dict[object, list[Slot]] = {}
    for slot in reversed(slots):
        by_kind.setdefault((slot.parameter.dtype, slot.parameter.device), []).append(slot)
    return [part for of_kind in by_kind.values() for part in _cut(of_kind)]


def _cut(slots: list[Slot]) -> list[list[Slot]]:
    limit = BUCKET_BYTES.get(slots[0].parameter.device.type)
    if limit is None:
        return [[slot] for slot in slots]
    sizes = [slot.parameter.nbytes for slot in slots]
    last, held = len(slots), 0
    while last > 0 and held + sizes[last - 1] <= limit * _LAST:
        last -= 1
        held += sizes[last]
    cut: list[list[Slot]] = [[]]
    held = 0
    for slot, size in zip(slots[:last], sizes, strict=False):
        if held >= limit:
            cut.append([])
            held = 0
        cut[-1].append(slot)
        held += size
    return [part for part in (*cut, slots[last:]) if part]
