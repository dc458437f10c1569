"""How the gradients of a unit are sent: as they are, cast together into one tensor, or each by itself, to the engine or
into a step that is captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.native import core
from sirtaki.torch import direct
from sirtaki.torch.compression import CastCompressor, Compressor, NoneCompressor
from sirtaki.torch.streams import stream_of
from sirtaki.torch.tensors import DTYPE_NUMBERS, Descriptor
from sirtaki.torch.units import REDUCED, UNKNOWN, Slot, Unit, is_expanded, not_as_sent, own_grads, zeros_of
from sirtaki.torch.wire import AnyWire, FlatWire, InPlace, Wire

_ALLREDUCE = core.VERBS["allreduce"]


def send(unit: Unit, how: tuple[int, float, float], group: int, compression: type[Compressor]) -> None:
    """Hands the unit's gradients over to be reduced; what this rank lacks counts as zero. `finish` waits for them.

    how: op, prescale, postscale. If the gradients lie so that they can be sent as they are, the unit is prepared to
    send them by itself from now on.
    """
    unit.prepared = None
    cast = _cast_on_the_way(unit, compression) if direct.casts else None
    if cast is not None and direct.active is not None:
        unit.wires, unit.own = [cast[0]], own_grads(unit.slots)
        unit.work = _submit_direct(unit, how, group, cast[1])
        return
    unit.wires = wires_of(unit, compression)
    unit.own = own_grads(unit.slots)
    unit.work = _submit(unit, how, group, cast)
    if direct.active is None:
        _prepare(unit, how, group)


def wires_of(unit: Unit, compression: type[Compressor]) -> list[AnyWire]:
    """One wire for all gradients where that can be, otherwise one for each gradient."""
    if unit.layouts and unit.ready == len(unit.slots):
        again = InPlace.again([slot.parameter.grad for slot in unit.slots], unit.layouts)
        if again is not None:
            return [again]
    grads = [_grad_to_send(slot) for slot in unit.slots]
    if (in_place := InPlace.of(grads, compression)) is not None:
        unit.layouts = in_place.layouts()
        return [in_place]
    if unit.bucket and (flat := FlatWire.of(grads, compression)) is not None:
        return [flat]
    return [Wire(grad, compression) for grad in grads]


def _cast_on_the_way(unit: Unit, compression: type[Compressor]) -> tuple[InPlace, int] | None:
    """For a step that is captured: the gradients where they lie, and the number of the dtype in which they will travel.

    None if one of them has to be copied or is not cast.
    """
    if not (isinstance(compression, type) and issubclass(compression, CastCompressor)):
        return None
    grads = [_grad_to_send(slot) for slot in unit.slots]
    if any(not grad.dtype.is_floating_point or grad.dtype == compression.wire for grad in grads):
        return None
    lie = InPlace.of(grads, NoneCompressor)
    return None if lie is None else (lie, DTYPE_NUMBERS[compression.wire])


def _grad_to_send(slot: Slot) -> torch.Tensor:
    """The parameter's gradient, dense and of memory of its own; zeros where this rank has none."""
    grad = slot.parameter.grad if slot.fired or slot.parameter.requires_grad else None
    if grad is None:
        grad = zeros_of(slot)
    elif grad.is_sparse or (not grad.is_contiguous() and is_expanded(grad)):
        slot.as_table |= slot.kind == UNKNOWN and grad.is_sparse  # later the ranks know
        grad = slot.parameter.grad = grad.detach().to_dense().contiguous()
    return grad


def _name_of(unit: Unit) -> str:
    return unit.name if not unit.times else f"{unit.name}.pass{unit.times + 1}"


def _descriptors_of(wires: Sequence[AnyWire]) -> list[Descriptor]:
    if len(wires) == 1:
        return wires[0].descriptors
    return [descriptor for wire in wires for descriptor in wire.descriptors]


def _submit_direct(unit: Unit, how: tuple[int, float, float], group: int, wire: int = direct.OWN_DTYPE) -> Any:
    if group != 0:
        raise RuntimeError("a step can be captured only if its gradients are reduced over all ranks")
    nbytes = sum(tensor.nbytes for sent in unit.wires for tensor in sent.tensors)
    return direct.active.send(_name_of(unit), _descriptors_of(unit.wires), nbytes, how, wire)


def _submit(unit: Unit, how: tuple[int, float, float], group: int, cast: tuple[InPlace, int] | None) -> Any:
    """cast: how the same gradients travel in a step that is captured, if not as they do here."""
    if direct.active is not None:
        return _submit_direct(unit, how, group)
    wires, name, descriptors = unit.wires, _name_of(unit), _descriptors_of(unit.wires)
    if direct.observed is not None:
        seen, wire = (cast[0].descriptors, cast[1]) if cast is not None else (descriptors, direct.OWN_DTYPE)
        direct.observed.append(direct.call_text(name, seen, how, wire))
    stream = stream_of(descriptors) or 0
    # By position, which takes half the time of names: root, splits, process set, site, awaited, keep, stream.
    return core.submit(_ALLREDUCE, name, descriptors, *how, -1, (), group, unit.step.site, False, wires, stream)


def _prepare(unit: Unit, how: tuple[int, float, float], group: int) -> None:
    wire = unit.wires[0]
    suits = isinstance(wire, InPlace) and all(type(grad) is torch.Tensor for grad in wire.tensors)
    if suits and unit.ready == len(unit.slots) and not unit.times:
        described = (unit.name, wire.descriptors, *how, group, unit.step.site, wire.tensors)
        unit.prepared = core.prepare_allreduce(*described)


def finish(unit: Unit) -> Slot | None:
    """Waits for what was sent and puts the reduced values where they belong; then the unit is done.

    Returns a slot whose gradient was replaced or written meanwhile. An interrupted wait leaves the unit as it is.
    """
    if (as_prepared := unit.finish()) is not False:
        return None if as_prepared is True else as_prepared
    unit.work.wait(stream_of(unit.wires[0].descriptors))
    changed = not_as_sent(unit.own)
    if changed is None:
        for wire in unit.wires:
            wire.put_back()
    unit.work, unit.wires, unit.own, unit.state = None, [], [], REDUCED
    for slot in unit.slots:
        if slot.as_table and slot.parameter.grad is not None:
            slot.parameter.grad = slot.parameter.grad.to_sparse(1)  # optimizers as SparseAdam take no other
        slot.reduced = slot.parameter.grad
    return changed
