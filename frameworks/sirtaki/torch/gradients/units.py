"""Slots (one for each parameter), units (the slots of one request), and zeros where this rank has no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.native import core
from sirtaki.torch.collectives.sparse import SparseReduction
from sirtaki.torch.gradients.wire import AnyWire, Layout

UNKNOWN, DENSE, SPARSE = range(3)  # the kind of a parameter's gradient; equal on all ranks
OPEN, SENT, REDUCED, FILLED = range(4)  # states of a unit in a step; FILLED: reduced, this rank had no gradient


class Slot(core.GradientSlot):
    """One parameter, and the hook on it: `fired` counts gradients since the last step."""

    __slots__ = ("as_table", "kind", "name", "sparse")

    def __init__(self, parameter: torch.Tensor, name: str) -> None:
        super().__init__(parameter)
        self.name = name
        self.kind = UNKNOWN
        self.as_table = False  # its gradient is sparse and sent as a dense tensor; equal on all ranks
        self.sparse: SparseReduction | None = None


class Presence:
    """Which slots of a unit have a gradient on this rank, and after the reduction on any rank. Sent with the gradients.

    A rank that has all gradients never reads the result, so it does not wait for a GPU.
    """

    def __init__(self, count: int, like: torch.Tensor) -> None:
        """like: a tensor with the dtype and device of the gradients that are sent."""
        dtype, device = like.dtype, like.device
        self._all = torch.ones(count, dtype=dtype, device=device)
        self._own = self._all
        self._any = torch.empty(count, dtype=dtype, device=device)

    def suits(self, count: int, like: torch.Tensor) -> bool:
        """Whether it has this length, dtype and device."""
        return (count, like.dtype, like.device) == (len(self._all), self._all.dtype, self._all.device)

    def set(self, present: Sequence[bool]) -> tuple[torch.Tensor, torch.Tensor]:
        """(tensor to send, tensor for the result)."""
        self._own = self._all
        if not all(present):
            self._own = torch.tensor(present, device=self._all.device).to(self._all.dtype)
        return self._own, self._any

    def on_any_rank(self) -> list[bool]:
        """By slot. Call it after the reduction."""
        return (self._any != 0).tolist()


class Unit(core.GradientUnit):
    """The slots of one request: one parameter, a group that the user asked for, or a bucket."""

    __slots__ = ("bucket", "fill", "layouts", "name", "presence", "wires")

    def __init__(self, step: core.GradientStep, slots: Sequence[Slot], name: str, bucket: bool = False) -> None:
        super().__init__(step, slots)
        self.name = name
        self.bucket = bucket
        self.wires: list[AnyWire] = []  # from send to finish; empty if it was sent as prepared
        self.fill: list[tuple[int, torch.Tensor]] = []  # likewise: slots without gradient on this rank, and their zeros
        self.layouts: list[Layout] = []  # of the gradients when they were last sent
        self.presence: Presence | None = None
        for slot in slots:
            slot.unit = self
        self.count(step.passes)

    def count(self, passes: int) -> None:
        """Counts again how many slots have had all their passes."""
        self.ready = sum(slot.fired >= passes for slot in self.slots)

    def remove(self, gone: set[int]) -> None:
        """Removes the slots with these ids."""
        self.slots = [slot for slot in self.slots if id(slot) not in gone]
        self.layouts = []
        self.count(self.step.passes)

    def without(self, slot: Slot) -> Unit:
        """Removes a slot from a bucket that was reduced too early for it. Returns a new unit, for one more pass."""
        self.remove({id(slot)})
        alone = Unit(self.step, [slot], f"{self.name}.{slot.name}")
        alone.times = 1
        return alone

    def present_for(self, sent: torch.Tensor) -> Presence:
        """The unit's `presence`, made when first needed. sent: one of the tensors that are sent with it."""
        if self.presence is None or not self.presence.suits(len(self.slots), sent):
            self.presence = Presence(len(self.slots), sent)
        return self.presence


def zeros_of(slot: Slot) -> torch.Tensor:
    """This rank's contribution for a parameter without a gradient."""
    return torch.zeros_like(slot.parameter, memory_format=torch.preserve_format, requires_grad=False)


def is_expanded(grad: torch.Tensor) -> bool:
    """Whether elements share memory, so that the gradient cannot be written in place."""
    return any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True))


def rows_of(slot: Slot) -> torch.Tensor | None:
    """This rank's rows, sparse in the first dimension, as embeddings make them; None if it has no gradient."""
    grad: Any = slot.parameter.grad
    if grad is None:
        return None
    return grad.detach() if grad.is_sparse else grad.detach().to_sparse(1)


def no_rows_of(parameter: torch.Tensor) -> torch.Tensor:
    """A sparse gradient without rows."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
