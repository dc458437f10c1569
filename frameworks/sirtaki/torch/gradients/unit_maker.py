"""Which gradients are sent together, and under which name. The same on all ranks, since it depends on slots alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sirtaki.native import core
from sirtaki.torch.gradients.buckets import bucketed
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.units import DENSE, SPARSE, Slot, Unit


class UnitMaker:
    """Makes the units of one optimizer: the groups that the user asked for, buckets of the others, sparse ones alone.

    bucket_factor: for the size of buckets; see bucketed(). Equal on all ranks.
    """

    def __init__(self, step: core.GradientStep, options: Options) -> None:
        self.bucket_factor = 1.0
        self._step = step
        self._options = options
        self._taken: set[str] = set()  # names of units

    def units_of(self, slots: Sequence[Slot]) -> list[Unit]:
        """slots: in the order on which the ranks agreed."""
        dense = [slot for slot in slots if slot.kind == DENSE]
        by_parameter = {id(slot.parameter): slot for slot in dense}
        units = [self._unit([slot], slot.name) for slot in slots if slot.kind == SPARSE]
        grouped: set[int] = set()
        groups = self._options.grouped(dense)
        for number, parameters in enumerate(groups):
            members = [by_parameter[id(p)] for p in parameters if id(p) in by_parameter]
            grouped.update(id(slot) for slot in members)
            if members:
                units.append(self._unit(members, f"{members[0].name}.group{number + 1}of{len(groups)}"))
        rest = [slot for slot in dense if id(slot) not in grouped]
        parts = [[slot] for slot in rest] if groups else bucketed(rest, self.bucket_factor)
        return units + [self._unit(part, _name_of(part), bucket=len(part) > 1) for part in parts]

    def units_for_once(self, slots: Sequence[Slot]) -> list[Unit]:
        """For slots that have units already and are reduced a second time in a step."""
        sparse = [[slot] for slot in slots if slot.kind == SPARSE]
        parts = sparse + bucketed([slot for slot in slots if slot.kind == DENSE])
        prefix = f"allreduce.{self._options.prefix}"
        return [Unit(self._step, part, f"{prefix}{_name_of(part)}.again", bucket=len(part) > 1) for part in parts]

    def has_buckets(self, slots: Sequence[Slot]) -> bool:
        """Whether the bucket factor matters."""
        return not self._options.grouped(slots)

    def forget(self, names: Iterable[str]) -> None:
        """Units that no rank sends any more; their names may be used again."""
        self._taken.difference_update(names)

    def _unit(self, slots: Sequence[Slot], name: str, bucket: bool = False) -> Unit:
        """Its name is unique: an earlier unit may have had a first parameter of the same name."""
        name = f"allreduce.{self._options.prefix}{name}"
        number, unique = 1, name
        while unique in self._taken:
            number += 1
            unique = f"{name}.{number}"
        self._taken.add(unique)
        return Unit(self._step, slots, unique, bucket)


def _name_of(slots: Sequence[Slot]) -> str:
    return slots[0].name if len(slots) == 1 else f"{slots[0].name}.and.{len(slots) - 1}"
