"""Slots, one for each parameter, and buckets, the slots of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.native import core

UNKNOWN, DENSE, SPARSE = range(3)  # the kind of a parameter's gradient; equal on all ranks
OPEN, SENT, REDUCED, FILLED = range(4)  # states of a bucket in a step; FILLED: reduced, this rank had no gradient


class Slot(core.GradientSlot):
    """One parameter, and the hook on it: `fired` counts gradients since the last step."""

    __slots__ = ("as_table", "kind", "name")

    def __init__(self, parameter: torch.Tensor, name: str) -> None:
        super().__init__(parameter)
        self.name = name
        self.kind = UNKNOWN
        self.as_table = False  # its gradient is sparse and sent as a dense tensor; equal on all ranks


class Bucket(core.GradientBucket):
    """The slots of one request: one parameter, a group that the user asked for, or, `by_size`, many small ones.

    in_place: dense gradients are sent from their own memory. name: of the request. shard: for sharding.
    """

    __slots__ = ("by_size", "shard")

    def __init__(
        self, step: core.GradientStep, slots: Sequence[Slot], name: str, in_place: bool, by_size: bool = False
    ) -> None:
        unusual = any(slot.kind == SPARSE or slot.as_table for slot in slots)
        super().__init__(step, slots, name, in_place and not unusual)
        self.by_size = by_size
        self.shard: Any = None
        for slot in slots:
            slot.bucket = self
        self.count(step.passes)

    def count(self, passes: int) -> None:
        """Counts again how many slots have had all their passes."""
        self.ready = sum(slot.fired >= passes for slot in self.slots)

    def remove(self, gone: set[int]) -> None:
        """Removes the slots with these ids."""
        self.slots = [slot for slot in self.slots if id(slot) not in gone]
        self.count(self.step.passes)

    def sleeps(self) -> bool:
        """Whether all its parameters are frozen, and without gradients."""
        return not any(slot.parameter.requires_grad or slot.parameter.grad is not None for slot in self.slots)

    def request_name(self) -> str:
        """Of the first request of its reduction."""
        if self.slots[0].kind == SPARSE:
            return f"allgather.{self.name.removeprefix('allreduce.')}.indices"
        return self.name

    def without(self, slot: Slot) -> Bucket:
        """Removes a slot that this bucket was reduced too early for. Returns its own bucket, for one more pass."""
        self.remove({id(slot)})
        alone = Bucket(self.step, [slot], f"{self.name}.{slot.name}", self.in_place)
        alone.times = 1
        return alone

    def make_presence(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sent with the gradients: which slots have one on this rank, here all; and the result, for how many ranks do.

        A rank that has all gradients never reads the result, so it does not wait for a GPU. like: a tensor that is
        sent.
        """
        all_of_them = torch.ones(len(self.slots), dtype=like.dtype.to_real(), device=like.device)
        return all_of_them, torch.empty_like(all_of_them)
