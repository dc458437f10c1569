"""Sends the gradients of a unit: unchanged, cast together into one tensor, or one by one. They go to the engine, or
into a step that is captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.native import core
from sirtaki.torch.compression import CastCompressor, Compressor, NoneCompressor
from sirtaki.torch.gradients import direct
from sirtaki.torch.gradients.units import REDUCED, Slot, Unit, is_expanded, zeros_of
from sirtaki.torch.gradients.wire import AnyWire, FlatWire, InPlace, Wire
from sirtaki.torch.ops.streams import stream_of
from sirtaki.torch.ops.tensors import DTYPE_NUMBERS, Descriptor, device_number

_ALLREDUCE = core.VERBS["allreduce"]


def send(unit: Unit, how: tuple[int, float, float], group: int, compression: type[Compressor]) -> None:
    """Submits the unit's gradients. A gradient that this rank does not have counts as zero. `finish` waits for them.

    how: op, prescale, postscale. If the gradients can be sent from their own memory, the unit is prepared: from now on
    the hooks send it without Python.
    """
    unit.prepared = None
    grads = _again(unit)
    if grads is None:
        grads = _grads_to_send(unit)
    cast = _cast_on_the_way(grads, compression) if direct.casts else None
    if cast is not None and direct.active is not None:
        unit.wires = [cast[0]]
        unit.hand_over()
        unit.work = _submit_direct(unit, how, group, cast[1])
        return
    unit.wires = wires_of(unit, grads, compression)
    unit.hand_over()
    unit.work = _submit(unit, how, group, cast)


def _again(unit: Unit) -> list[torch.Tensor] | None:
    """The gradients if their layouts are those of the last time; else None."""
    if not unit.layouts:
        return None
    grads = [slot.parameter.grad for slot in unit.slots]
    if any(grad is None or grad.is_complex() for grad in grads) or InPlace.again(grads, unit.layouts) is None:
        return None
    unit.fill = []
    return grads


def _grads_to_send(unit: Unit) -> list[torch.Tensor]:
    unit.fill, grads = [], []
    for place, slot in enumerate(unit.slots):
        grad = _grad_to_send(slot)
        if slot.parameter.grad is None:
            unit.fill.append((place, grad))
        grads.append(torch.view_as_real(grad) if grad.is_complex() else grad)
    return grads


def wires_of(unit: Unit, grads: Sequence[torch.Tensor], compression: type[Compressor]) -> list[AnyWire]:
    """One wire for all gradients if that is possible, otherwise one for each gradient."""
    if unit.layouts and not unit.fill:
        again = InPlace.again(grads, unit.layouts)
        if again is not None:
            return [again]
    if (in_place := InPlace.of(grads, compression)) is not None:
        unit.layouts = in_place.layouts()
        return [in_place]
    if unit.bucket and (flat := FlatWire.of(grads, compression)) is not None:
        return [flat]
    return [Wire(grad, compression) for grad in grads]


def _cast_on_the_way(grads: Sequence[torch.Tensor], compression: type[Compressor]) -> tuple[InPlace, int] | None:
    """For a step that is captured: the gradients in their own memory, and the number of the dtype of the wire.

    None if one of them must be copied or is not cast.
    """
    if not (isinstance(compression, type) and issubclass(compression, CastCompressor)):
        return None
    if any(not grad.dtype.is_floating_point or grad.dtype == compression.wire for grad in grads):
        return None
    lie = InPlace.of(grads, NoneCompressor)
    return None if lie is None else (lie, DTYPE_NUMBERS[compression.wire])


def _grad_to_send(slot: Slot) -> torch.Tensor:
    """The parameter's gradient, dense, with no elements that share memory; zeros if this rank has none."""
    grad = slot.parameter.grad
    if grad is None:
        return zeros_of(slot)
    if grad.is_sparse or grad.is_conj() or grad.is_neg() or (not grad.is_contiguous() and is_expanded(grad)):
        dense = grad.detach().to_dense() if grad.is_sparse else grad.detach().resolve_conj().resolve_neg()
        grad = slot.parameter.grad = dense.contiguous()
    return grad


def _name_of(unit: Unit) -> str:
    return unit.name if not unit.times else f"{unit.name}.pass{unit.times + 1}"


def _descriptors_of(wires: Sequence[AnyWire]) -> list[Descriptor]:
    if len(wires) == 1:
        return wires[0].descriptors
    return [descriptor for wire in wires for descriptor in wire.descriptors]


def _submit_direct(unit: Unit, how: tuple[int, float, float], group: int, wire: int = direct.OWN_DTYPE) -> Any:
    """A captured step cannot exchange which ranks have a gradient. So every rank gets one."""
    if group != 0:
        raise RuntimeError("a step can be captured only if its gradients are reduced over all ranks")
    nbytes = sum(tensor.nbytes for sent in unit.wires for tensor in sent.tensors)
    return direct.active.send(_name_of(unit), _descriptors_of(unit.wires), nbytes, how, wire)


def _submit(unit: Unit, how: tuple[int, float, float], group: int, cast: tuple[InPlace, int] | None) -> Any:
    """cast: how a captured step will send the same gradients, if it does so in another way."""
    if direct.active is not None:
        return _submit_direct(unit, how, group)
    wires, name, descriptors = unit.wires, _name_of(unit), _descriptors_of(unit.wires)
    if direct.observed is not None:
        seen, wire = (cast[0].descriptors, cast[1]) if cast is not None else (descriptors, direct.OWN_DTYPE)
        direct.observed.append(direct.call_text(name, seen, how, wire))
    lacking = {place for place, _ in unit.fill}
    presence = unit.present_for(wires[0].tensors[0])
    own, result = presence.set([place not in lacking for place in range(len(unit.slots))])
    number, device = DTYPE_NUMBERS[own.dtype], device_number(own)
    descriptors = [*descriptors, (own.data_ptr(), result.data_ptr(), number, tuple(own.shape), device)]
    stream = stream_of(descriptors) or 0
    # By position, which takes half the time of keywords: root, splits, process set, site, awaited, keep, stream.
    keep = (wires, own, result)
    work = core.submit(_ALLREDUCE, name, descriptors, *how, -1, (), group, unit.step.site, False, keep, stream)
    _prepare(unit, descriptors, how, group)
    return work


def _prepare(unit: Unit, descriptors: list[Descriptor], how: tuple[int, float, float], group: int) -> None:
    if not isinstance(unit.wires[0], InPlace) or unit.fill or unit.times:
        return
    grads = [slot.parameter.grad for slot in unit.slots]
    if all(type(grad) is torch.Tensor for grad in grads):
        described = (unit.name, descriptors, *how, group, unit.step.site, grads, unit.presence)
        unit.prepared = core.prepare_allreduce(*described)


def finish(unit: Unit) -> Slot | None:
    """Waits for the unit's request and stores the reduced values; then the unit is done.

    Returns a slot whose gradient was replaced or written meanwhile, else None. An interrupted wait changes nothing.
    """
    if (as_prepared := unit.finish()) is not False:
        return None if as_prepared is True else as_prepared
    unit.work.wait(stream_of(unit.wires[0].descriptors))
    changed = unit.changed()
    if changed is True:
        for wire in unit.wires:
            wire.put_back()
        _fill(unit)
        _make_sparse_again(unit)
    unit.work, unit.wires, unit.fill, unit.state = None, [], [], REDUCED
    return None if changed is True else changed


def _fill(unit: Unit) -> None:
    """Stores the reduced gradients that only other ranks had. If no rank had one, None stays None."""
    if not unit.fill:
        return
    on_any = [True] * len(unit.slots) if direct.active is not None else unit.presence.on_any_rank()
    for place, reduced in unit.fill:
        if on_any[place]:
            slot = unit.slots[place]
            slot.parameter.grad = slot.gradient = reduced


def _make_sparse_again(unit: Unit) -> None:
    """For sparse_as_dense: optimizers such as SparseAdam accept sparse gradients only."""
    for slot in unit.slots:
        if slot.as_table and slot.parameter.grad is not None:
            slot.parameter.grad = slot.gradient = slot.parameter.grad.to_sparse(1)
