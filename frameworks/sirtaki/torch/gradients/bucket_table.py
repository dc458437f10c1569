"""All buckets of one optimizer, and the parameters that wait for their first gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from sirtaki.native import core
from sirtaki.timing import energy
from sirtaki.torch.gradients.buckets import BucketMaker
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.slots import DENSE, OPEN, SPARSE, UNKNOWN, Bucket, Slot


class BucketTable:
    """agreed: all ranks have the same table, as far as is known. gone: names of requests that ranks send if they have
    not let go of the same buckets since the last vote. factor: for the size of buckets, from the next step on.
    """

    def __init__(self, step: core.GradientStep, options: Options) -> None:
        self.buckets: list[Bucket] = []
        # Parameters that had no gradient on any rank so far; is never sent.
        self.waiting = Bucket(step, [], "", in_place=False)
        self.agreed = True
        self.gone: list[str] = []
        self.factor = 1.0
        self._sparse_as_dense = options.sparse_as_dense
        self._maker = BucketMaker(step, options)
        self._dense: list[Slot] = []  # that have buckets, in the order on which the ranks agreed

    def known(self) -> list[Slot]:
        """Whose kind the ranks have agreed on."""
        return [slot for bucket in self.buckets for slot in bucket.slots]

    def request_names(self) -> list[str]:
        """What this rank sends in every step."""
        return [bucket.request_name() for bucket in self.buckets]

    def change(self) -> str:
        """What has changed since the last vote."""
        if self.gone:
            return f"the parameters of {self.gone[0]} were frozen, replaced or removed"
        if self.waiting.slots:
            return f"{self.waiting.slots[-1].name} was added, replaced or unfrozen"
        return "parameters were removed"

    def note_agreed(self) -> None:
        """After a vote."""
        self.agreed = True
        self._maker.forget(self.gone)
        self.gone = []

    def add_waiting(self, slots: Sequence[Slot]) -> None:
        """Parameters that may have gradients from now on."""
        self.agreed = False
        self._set_waiting([*self.waiting.slots, *slots])

    def _set_waiting(self, slots: Iterable[Slot]) -> None:
        self.waiting.slots = list(slots)
        for slot in self.waiting.slots:
            slot.bucket = self.waiting
        self.waiting.count(self.waiting.step.passes)

    def add(self, asked: Sequence[Slot], found: Sequence[tuple[Slot, int]]) -> list[Bucket]:
        """Makes buckets of those of `asked` that have gradients for the first time, of these kinds. The others wait."""
        for slot, kind in found:
            slot.as_table = kind == SPARSE and self._sparse_as_dense
            slot.kind = DENSE if slot.as_table else kind
        made = self._maker.buckets_of([slot for slot, _ in found])
        _count_energy(made)
        self.buckets += made
        self._dense += [slot for slot, _ in found if slot.kind == DENSE]
        self._set_waiting(slot for slot in asked if slot.kind == UNKNOWN)
        return made

    def for_once(self, slots: Sequence[Slot]) -> list[Bucket]:
        """Buckets outside the table for slots that have buckets in it."""
        return self._maker.buckets_for_once(slots)

    def split(self, slot: Slot) -> None:
        """Gives a slot its own bucket, for its bucket was reduced too early for it."""
        self.buckets.append(slot.bucket.without(slot))
        self.buckets = [bucket for bucket in self.buckets if bucket.slots]

    def put_asleep(self) -> None:
        """Lets go of buckets that were frozen as a whole."""
        asleep = [bucket for bucket in self.buckets if bucket.state == OPEN and bucket.sleeps()]
        for bucket in asleep:
            for slot in bucket.slots:
                slot.bucket, slot.kind = None, UNKNOWN
        if asleep:
            self._dense = [slot for slot in self._dense if slot.bucket is not None]
            self._let_go(asleep)

    def remove(self, slots: Sequence[Slot]) -> None:
        """Parameters that the optimizer no longer has, or that another reducer takes over."""
        gone = {id(slot) for slot in slots}
        for bucket in homes_of(slots):
            bucket.remove(gone)
        for slot in slots:
            slot.bucket = None
        self._let_go([bucket for bucket in self.buckets if not bucket.slots])
        self._dense = [slot for slot in self._dense if id(slot) not in gone]

    def _let_go(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            self.buckets.remove(bucket)
            self.gone.append(bucket.name)
        self.agreed = False

    def reset(self) -> None:
        """Between two steps. Buckets of another size are the same on all ranks, since the slots and their order are."""
        for bucket in (*self.buckets, self.waiting):
            bucket.reset()
        if self._maker.factor != self.factor:
            self._maker.factor = self.factor
            if self._maker.has_sizes(self._dense):
                sparse = [bucket for bucket in self.buckets if bucket.slots[0].kind == SPARSE]
                self.buckets = sparse + self._maker.buckets_of(self._dense)


def homes_of(slots: Iterable[Slot]) -> list[Bucket]:
    """The buckets of these slots, each once."""
    return list({id(slot.bucket): slot.bucket for slot in slots if slot.bucket is not None}.values())


def _count_energy(buckets: Iterable[Bucket]) -> None:
    """Of the GPUs that have these buckets."""
    for device in {bucket.slots[0].parameter.device for bucket in buckets}:
        if device.type == "cuda":
            uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # torch knows it from 2.4.1 on
            if uuid is not None:
                energy.count_gpu(f"GPU-{uuid}")
