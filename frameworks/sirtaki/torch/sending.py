"""How the gradients of a unit are sent: as they are, cast together into one tensor, or each by itself."""

from __future__ import annotations

import torch

from sirtaki.torch.compression import Compressor
from sirtaki.torch.units import Slot, Unit, is_expanded, zeros_of
from sirtaki.torch.wire import AnyWire, FlatWire, InPlace, Wire


def wires_of(unit: Unit, compression: type[Compressor]) -> list[AnyWire]:
    """One wire for all gradients of a bucket where that can be, otherwise one for each gradient."""
    if not unit.bucket:
        return [Wire(_grad_to_send(slot), compression) for slot in unit.slots]
    if unit.layouts and unit.ready == len(unit.slots):
        again = InPlace.again([slot.parameter.grad for slot in unit.slots], unit.layouts)
        if again is not None:
            return [again]
    grads = [_grad_to_send(slot) for slot in unit.slots]
    if (in_place := InPlace.of(grads, compression)) is not None:
        unit.layouts = in_place.layouts()
        return [in_place]
    if (flat := FlatWire.of(grads, compression)) is not None:
        return [flat]
    return [Wire(grad, compression) for grad in grads]


def _grad_to_send(slot: Slot) -> torch.Tensor:
    """The parameter's gradient, dense and of memory of its own; zeros where this rank has none."""
    grad = slot.parameter.grad if slot.fired or slot.parameter.requires_grad else None
    if grad is None:
        grad = zeros_of(slot)
    elif grad.is_sparse or (not grad.is_contiguous() and is_expanded(grad)):
        grad = slot.parameter.grad = grad.detach().to_dense().contiguous()
    return grad
