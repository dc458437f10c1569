"""Which gradients are sent together, and under which name. The same on all ranks, since it depends on agreed facts.

Many gradients travel in one request, a bucket, because each request costs time on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sirtaki.native import core
from sirtaki.torch.compression import NoneCompressor
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.slots import DENSE, SPARSE, Bucket, Slot

# Small enough that most buckets are sent while backward still runs. Large enough that few are: each wakes a thread.
BUCKET_BYTES = {"cpu": 16 << 20, "cuda": 25 << 20}
# While the last bucket is sent, nothing is left to compute. So it is at most this part of a bucket.
_LAST = 1 / 16


class BucketMaker:
    """Makes the buckets of one optimizer: the groups that the user asked for, others by size, sparse ones alone.

    factor: for the size of buckets; see bucketed(). Equal on all ranks.
    """

    def __init__(self, step: core.GradientStep, options: Options) -> None:
        self.factor = 1.0
        self._step = step
        self._options = options
        self._taken: set[str] = set()  # names of buckets

    def buckets_of(self, slots: Sequence[Slot]) -> list[Bucket]:
        """slots: in the order on which the ranks agreed."""
        dense = [slot for slot in slots if slot.kind == DENSE]
        by_parameter = {id(slot.parameter): slot for slot in dense}
        buckets = [self._bucket([slot], slot.name) for slot in slots if slot.kind == SPARSE]
        grouped: set[int] = set()
        groups = self._options.grouped(dense)
        for number, parameters in enumerate(groups):
            members = [by_parameter[id(p)] for p in parameters if id(p) in by_parameter]
            grouped.update(id(slot) for slot in members)
            if members:
                buckets.append(self._bucket(members, f"{members[0].name}.group{number + 1}of{len(groups)}"))
        rest = [slot for slot in dense if id(slot) not in grouped]
        parts = [[slot] for slot in rest] if groups else bucketed(rest, self.factor)
        return buckets + [self._bucket(part, _name_of(part), by_size=len(part) > 1) for part in parts]

    def buckets_for_once(self, slots: Sequence[Slot]) -> list[Bucket]:
        """For slots that have buckets already and are reduced a second time in a step."""
        sparse = [[slot] for slot in slots if slot.kind == SPARSE]
        parts = sparse + bucketed([slot for slot in slots if slot.kind == DENSE])
        return [self._named(f"{self._prefix}{_name_of(part)}.again", part, len(part) > 1) for part in parts]

    def has_sizes(self, slots: Sequence[Slot]) -> bool:
        """Whether the factor matters."""
        return not self._options.grouped(slots)

    def forget(self, names: Iterable[str]) -> None:
        """Buckets that no rank sends any more; their names may be used again."""
        self._taken.difference_update(names)

    def _bucket(self, slots: Sequence[Slot], name: str, by_size: bool = False) -> Bucket:
        """Its name is unique: an earlier bucket may have had a first parameter of the same name."""
        name = f"{self._prefix}{name}"
        number, unique = 1, name
        while unique in self._taken:
            number += 1
            unique = f"{name}.{number}"
        self._taken.add(unique)
        return self._named(unique, slots, by_size)

    def _named(self, name: str, slots: Sequence[Slot], by_size: bool) -> Bucket:
        in_place = self._options.compression is NoneCompressor and not self._options.sharded
        return Bucket(self._step, slots, name, in_place, by_size)

    @property
    def _prefix(self) -> str:
        return f"{'reducescatter' if self._options.sharded else 'allreduce'}.{self._options.prefix}"


def _name_of(slots: Sequence[Slot]) -> str:
    return slots[0].name if len(slots) == 1 else f"{slots[0].name}.and.{len(slots) - 1}"


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
