"""Buckets: many gradients in one request, because each request costs time on the host."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki.torch.gradients.units import Slot

# Small enough that most buckets are sent while backward still runs. Large enough that few are: each wakes a thread.
BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 25 << 20}
# While the last bucket is sent, nothing is left to compute. So it is at most this part of a bucket.
_LAST = 1 / 16


def bucketed(slots: Sequence[Slot], factor: float = 1.0) -> list[list[Slot]]:
    """The slots of dense gradients by bucket, in the order of backward. A bucket has one dtype and one device.

    Depends on the parameters and on the factor for the size alone, so all ranks make the same buckets.
    """
    by_kind: dict[object, list[Slot]] = {}
    for slot in reversed(slots):
        by_kind.setdefault((slot.parameter.dtype, slot.parameter.device), []).append(slot)
    return [part for of_kind in by_kind.values() for part in _cut(of_kind, factor)]


def _cut(slots: list[Slot], factor: float) -> list[list[Slot]]:
    usual = BUCKET_BYTES.get(slots[0].parameter.device.type)
    if usual is None:
        return [[slot] for slot in slots]
    limit = usual * factor
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
