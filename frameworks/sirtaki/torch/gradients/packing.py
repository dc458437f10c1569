"""Sends gradients that cannot be sent as they lie: compressed, missing, sparse, of another layout, or into a step that
is captured.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TypeGuard

import torch

from sirtaki.native import core
from sirtaki.torch.compression import CastCompressor, Compressor, NoneCompressor
from sirtaki.torch.gradients import direct
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.slots import Bucket, Slot
from sirtaki.torch.ops.tensors import DTYPE_NUMBERS, Descriptor


def send_packed(bucket: Bucket, options: Options) -> None:
    """Sends the bucket's gradients to the engine, or into a step that is captured. Missing ones count as zeros."""
    compression = options.compression
    if direct.active is None and direct.observed is None:
        cast = _cast_by_kernels(bucket, compression)
        if cast is not None:
            bucket.send_packed(cast)
            return
    grads = [gradient_of(slot) for slot in bucket.slots]
    wire = _wire_of(grads, compression) if direct.casts else direct.OWN_DTYPE
    if direct.active is not None:
        packed = Packed(bucket, grads, compression if wire == direct.OWN_DTYPE else NoneCompressor)
        if options.group != 0:
            raise RuntimeError("a step can be captured only if its gradients are reduced over all ranks")
        nbytes = sum(tensor.nbytes for tensor in packed.tensors)
        call = (bucket.call_name(), [*map(_described, packed.tensors)], nbytes, options.reduction(), wire)
        bucket.note_sent(direct.active.send(*call), packed)
        return
    packed = Packed(bucket, grads, compression)
    if direct.observed is not None:
        seen = [*map(_described, packed.tensors if wire == direct.OWN_DTYPE else grads)]
        direct.observed.append(direct.call_text(bucket.call_name(), seen, options.reduction(), wire))
    bucket.send_packed(packed)


def _cast_by_kernels(bucket: Bucket, compression: type[Compressor]) -> core.CastGradients | None:
    """Sends what FlatWire would send, at less cost for the host. None if that is not possible."""
    if not (bucket.by_size and _is_cast(compression) and _has_kernels(bucket.slots[0].parameter)):
        return None
    wire = compression.wire
    return core.CastGradients.make(tuple(bucket.slots), DTYPE_NUMBERS[wire], functools.partial(_flat_tensors, wire))


def gradient_of(slot: Slot) -> torch.Tensor:
    """The parameter's gradient, dense and real, with no elements that share memory; zeros if this rank has none."""
    grad = slot.parameter.grad
    if grad is None:
        grad = torch.zeros_like(slot.parameter, memory_format=torch.preserve_format, requires_grad=False)
    elif grad.is_sparse or grad.is_conj() or grad.is_neg() or (not grad.is_contiguous() and _is_expanded(grad)):
        dense = grad.detach().to_dense() if grad.is_sparse else grad.detach().resolve_conj().resolve_neg()
        grad = slot.parameter.grad = dense.contiguous()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _is_expanded(grad: torch.Tensor) -> bool:
    """Whether elements share memory, so that the gradient cannot be written in place."""
    return any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True))


def _wire_of(grads: Sequence[torch.Tensor], compression: type[Compressor]) -> int:
    """The dtype in which a captured step sends the gradients from their own memory; OWN_DTYPE if it does not."""
    if not _is_cast(compression):
        return direct.OWN_DTYPE
    if any(not grad.dtype.is_floating_point or grad.dtype == compression.wire for grad in grads):
        return direct.OWN_DTYPE
    in_place = all(core.describe_tensor(grad) is not None for grad in grads)
    return DTYPE_NUMBERS[compression.wire] if in_place else direct.OWN_DTYPE


def _described(tensor: torch.Tensor) -> Descriptor:
    described = core.describe_tensor(tensor)
    if described is None:
        raise ValueError(f"a gradient of type {tensor.dtype} on {tensor.device} is not supported")
    return described


class Packed:
    """The tensors that are sent in place of a bucket's gradients. present: which slots have one here; None: all."""

    def __init__(self, bucket: Bucket, grads: Sequence[torch.Tensor], compression: type[Compressor]) -> None:
        flat = FlatWire.of(grads, compression) if bucket.by_size else None
        self._wires = [flat] if flat is not None else [Wire(grad, compression) for grad in grads]
        self.tensors = [tensor for wire in self._wires for tensor in wire.tensors]
        self._grads = grads
        has = [slot.parameter.grad is not None for slot in bucket.slots]
        first = self.tensors[0]
        self.present = None if all(has) else torch.tensor(has, device=first.device).to(first.dtype)

    def unpack(self, bucket: Bucket) -> None:
        """Writes the reduced values into the gradients."""
        for wire in self._wires:
            wire.put_back()
        if self.present is not None:
            self._fill(bucket)
        for slot in bucket.slots:
            # Optimizers such as SparseAdam accept sparse gradients only.
            if slot.as_table and slot.parameter.grad is not None:
                slot.parameter.grad = slot.gradient = slot.parameter.grad.to_sparse(1)

    def _fill(self, bucket: Bucket) -> None:
        """Stores the reduced gradients that only other ranks had. If no rank had one, None stays None."""
        # Ranks cannot exchange in a captured step which of them have a gradient. So every rank gets one.
        on_any = [True] * len(bucket.slots) if direct.active is not None else (bucket.presence[1] != 0).tolist()
        for slot, grad, found in zip(bucket.slots, self._grads, on_any, strict=True):
            if found and slot.parameter.grad is None:
                is_complex = slot.parameter.is_complex()
                slot.parameter.grad = slot.gradient = torch.view_as_complex(grad) if is_complex else grad


class Wire:
    """One gradient that is sent: from its own memory if its layout allows that, otherwise as a compact copy."""

    def __init__(self, grad: torch.Tensor, compression: type[Compressor]) -> None:
        self._grad = grad
        self._compression = compression
        self._ctx = None
        tensor = grad
        if compression is not NoneCompressor or core.describe_tensor(grad) is None:
            tensor = self._copy(grad)
        _described(tensor)
        self.tensors = (tensor,)

    def _copy(self, grad: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wire, self._ctx = self._compression.compress(grad.detach())
            if not wire.is_contiguous():
                return wire.contiguous()
            if wire.data_ptr() == grad.data_ptr() and self._ctx is not None:
                return wire.clone()  # the compressor may still need the same memory to decompress
            return wire

    def put_back(self) -> None:
        """Writes the reduced values into the gradient, unless they are there already."""
        (tensor,) = self.tensors
        if tensor is not self._grad:
            with torch.no_grad():
                self._grad.copy_(self._compression.decompress(tensor, self._ctx).reshape(self._grad.shape))


class FlatWire:
    """Several gradients that are sent as one tensor of another dtype. torch casts them."""

    @staticmethod
    def of(grads: Sequence[torch.Tensor], compression: type[Compressor]) -> FlatWire | None:
        """None unless the compression casts all of them, and each is contiguous or channels_last."""
        if not _is_cast(compression):
            return None
        suit = all(g.dtype.is_floating_point and g.dtype != compression.wire and _is_dense(g) for g in grads)
        return FlatWire(grads, compression) if suit else None

    def __init__(self, grads: Sequence[torch.Tensor], compression: type[CastCompressor]) -> None:
        self._grads = [grad.detach() for grad in grads]
        elements = sum(g.numel() for g in grads)
        self.tensors = _flat_tensors(compression.wire, grads[0], elements, core.layout_checksum(grads))
        flat = self.tensors[0]
        starts = itertools.accumulate((grad.numel() for grad in grads), initial=0)
        self._views = [flat.as_strided(g.shape, g.stride(), start) for g, start in zip(grads, starts, strict=False)]
        torch._foreach_copy_(self._views, self._grads)

    def put_back(self) -> None:
        """Writes the reduced values into the gradients."""
        torch._foreach_copy_(self._grads, self._views)


def _flat_tensors(
    wire: torch.dtype, like: torch.Tensor, elements: int, checksum: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tensor for all elements. Ranks whose gradients have other layouts would sum elements that do not belong
    together. The second tensor has no elements, but its shape differs between such ranks: an error on every rank.
    """
    flat = torch.empty(elements, dtype=wire, device=like.device)
    return flat, flat.new_empty((0, checksum))


def _is_cast(compression: type[Compressor]) -> TypeGuard[type[CastCompressor]]:
    return isinstance(compression, type) and issubclass(compression, CastCompressor)


def _is_dense(grad: torch.Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(grad.dim(), torch.contiguous_format)
    return grad.is_contiguous() or grad.is_contiguous(memory_format=layout)


_kernels: dict[int, bool] = {}  # by GPU


def _has_kernels(tensor: torch.Tensor) -> bool:
    """Whether Sirtaki's own kernels can cast this tensor."""
    if not tensor.is_cuda:
        return False
    device = tensor.get_device()
    if device not in _kernels:
        _kernels[device] = not core.gpu_card(device)[3]
    return _kernels[device]
