"""What the reducer keeps of each parameter, what travels together, and this rank's part where it has no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.native import core
from sirtaki.torch.sparse import SparseReduction
from sirtaki.torch.wire import AnyWire, Layout

UNKNOWN, DENSE, SPARSE = range(3)  # what kind of gradient a parameter has; equal on all ranks
OPEN, SENT, REDUCED, FILLED = range(4)  # a unit within one step; FILLED: reduced without a gradient of this rank


class Slot(core.GradientSlot):
    """One parameter, and the hook on it: `fired` counts gradients since the last step."""

    __slots__ = ("as_table", "kind", "name", "sparse")

    def __init__(self, parameter: torch.Tensor, name: str) -> None:
        super().__init__(parameter)
        self.name = name
        self.kind = UNKNOWN
        self.as_table = False  # its gradient is sparse and travels dense; equal on all ranks
        self.sparse: SparseReduction | None = None


Sent = tuple[Slot, torch.Tensor, int]  # the last: torch's count of what has written the gradient


class Unit(core.GradientUnit):
    """Slots that travel as one request: one parameter, a group that the user asked for, or a bucket of ours."""

    __slots__ = ("bucket", "layouts", "name", "own", "wires")

    def __init__(self, step: core.GradientStep, slots: Sequence[Slot], name: str, bucket: bool = False) -> None:
        super().__init__(step, slots)
        self.name = name
        self.bucket = bucket
        self.wires: list[AnyWire] = []  # while under way, unless it was sent as prepared
        self.own: list[Sent] = []  # likewise
        self.layouts: list[Layout] = []  # of the gradients, as they were sent last
        for slot in slots:
            slot.unit = self

    def remove(self, slot: Slot, passes: int) -> None:
        self.slots = [other for other in self.slots if other is not slot]
        self.layouts = []
        self.ready = sum(other.fired >= passes for other in self.slots)

    def without(self, slot: Slot) -> Unit:
        """Takes a slot out of a bucket that was reduced before the slot's gradient came: a unit for another pass."""
        self.remove(slot, self.step.passes)
        alone = Unit(self.step, [slot], f"allreduce.{slot.name}")
        alone.times = 1
        return alone


def zeros_of(slot: Slot) -> torch.Tensor:
    """This rank's part for a parameter that it has not used. The parameter gets the reduced value as its gradient."""
    zeros = torch.zeros_like(slot.parameter, memory_format=torch.preserve_format)
    if slot.parameter.requires_grad:
        slot.parameter.grad = zeros
    return zeros


def own_grads(slots: Sequence[Slot]) -> list[Sent]:
    """What is sent of the slots' own, for `not_as_sent`."""
    own = [(slot, slot.parameter.grad) for slot in slots if slot.fired or slot.parameter.requires_grad]
    return [(slot, grad, _version(grad)) for slot, grad in own if grad is not None]


def not_as_sent(sent: Sequence[Sent]) -> Slot | None:
    """A slot whose gradient is another one, or was written since: it does not hold the reduced values."""
    for slot, grad, version in sent:
        if slot.parameter.grad is not grad or _version(grad) != version:
            return slot
    return None


def _version(grad: torch.Tensor) -> int:
    return 0 if grad.is_inference() else grad._version


def is_expanded(grad: torch.Tensor) -> bool:
    """Whether elements share memory, so that it cannot be written."""
    return any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True))


def rows_of(slot: Slot) -> torch.Tensor:
    """This rank's rows, none if it has no gradient; rows along the first dimension, as embeddings make them."""
    parameter, grad = slot.parameter, slot.parameter.grad
    if grad is not None:
        return grad.detach() if grad.is_sparse else grad.detach().to_sparse(1)
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
