"""How a gradient is sent: from its own memory if its layout allows that, otherwise as a compact copy."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import torch

from sirtaki.native import core
from sirtaki.torch.compression import CastCompressor, Compressor, NoneCompressor
from sirtaki.torch.ops.streams import current_stream
from sirtaki.torch.ops.tensors import DTYPE_NUMBERS, Descriptor, device_number

_CHANNELS_LAST = {4: (torch.channels_last, (0, 2, 3, 1)), 5: (torch.channels_last_3d, (0, 2, 3, 4, 1))}


def _storage_order(grad: torch.Tensor) -> tuple[int, ...] | None:
    """The shape in the order of memory; None if ranks with another order could not be noticed by it.

    A rank with a contiguous gradient sends the shape (O, I, H, W), a rank with channels_last (O, H, W, I). Different
    shapes are an error on every rank. If both have the same numbers, as (64, 3, 3, 3), nobody would see a difference.
    """
    shape = tuple(grad.shape)
    if grad.is_contiguous():
        return shape
    layout, order = _CHANNELS_LAST.get(grad.dim(), (None, ()))
    if layout is None or not grad.is_contiguous(memory_format=layout):
        return None
    permuted = tuple(shape[dimension] for dimension in order)
    return permuted if permuted != shape else None


class Wire:
    """One gradient that is being sent. After `put_back` the gradient holds the reduced values."""

    __slots__ = ("_compression", "_ctx", "_grad", "descriptors", "tensor")

    def __init__(self, grad: torch.Tensor, compression: type[Compressor]) -> None:
        self._grad = grad
        self._compression = compression
        self._ctx = None
        self.tensor = grad
        shape = _storage_order(grad) if compression is NoneCompressor else None
        if shape is None:
            shape = tuple(grad.shape)
            self._copy(grad)
        number = DTYPE_NUMBERS.get(self.tensor.dtype)
        if number is None:
            raise ValueError(f"a gradient of type {self.tensor.dtype} is not supported")
        address = self.tensor.data_ptr()
        self.descriptors: list[Descriptor] = [(address, address, number, shape, device_number(self.tensor))]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.tensor]

    def _copy(self, grad: torch.Tensor) -> None:
        with torch.no_grad():
            wire, self._ctx = self._compression.compress(grad.detach())
            if not wire.is_contiguous():
                wire = wire.contiguous()
            elif wire.data_ptr() == grad.data_ptr() and self._ctx is not None:
                wire = wire.clone()  # the compressor may still need the same memory to decompress
        self.tensor = wire

    def put_back(self) -> None:
        """Writes the reduced values into the gradient, unless they are there already."""
        if self.tensor is self._grad:
            return
        with torch.no_grad():
            self._grad.copy_(self._compression.decompress(self.tensor, self._ctx).reshape(self._grad.shape))


# (dtype, shape, strides, device number, dtype number, shape in the order of memory)
Layout = tuple[torch.dtype, torch.Size, tuple[int, ...], int, int, tuple[int, ...]]


class InPlace:
    """Several gradients that are being sent from their own memory."""

    __slots__ = ("descriptors", "tensors")

    @staticmethod
    def of(grads: Sequence[torch.Tensor], compression: type[Compressor]) -> InPlace | None:
        """None if one of them must be copied."""
        if compression is not NoneCompressor:
            return None
        descriptors: list[Descriptor] = []
        for grad in grads:
            shape, number = _storage_order(grad), DTYPE_NUMBERS.get(grad.dtype)
            if shape is None or number is None:
                return None
            address = grad.data_ptr()
            descriptors.append((address, address, number, shape, device_number(grad)))
        return InPlace(grads, descriptors)

    @staticmethod
    def again(grads: Sequence[torch.Tensor | None], layouts: Sequence[Layout]) -> InPlace | None:
        """The same, quicker, for gradients with the known `layouts()`; None if one has another layout."""
        descriptors: list[Descriptor] = []
        for grad, (dtype, size, stride, device, number, shape) in zip(grads, layouts, strict=True):
            if grad is None or grad.is_sparse or grad.dtype != dtype or grad.shape != size or grad.stride() != stride:
                return None
            if grad.get_device() != device:
                return None
            address = grad.data_ptr()
            descriptors.append((address, address, number, shape, device))
        return InPlace(grads, descriptors)

    def __init__(self, grads: Sequence[torch.Tensor], descriptors: list[Descriptor]) -> None:
        self.tensors = grads
        self.descriptors = descriptors

    def layouts(self) -> list[Layout]:
        """The layouts. Most programs have the same ones at every step, and comparing is quicker than finding them."""
        found = zip(self.tensors, self.descriptors, strict=True)
        return [
            (grad.dtype, grad.shape, grad.stride(), device, number, shape)
            for grad, (_, _, number, shape, device) in found
        ]

    def put_back(self) -> None:
        """Does nothing: the gradients were reduced in their own memory."""


def _is_dense(grad: torch.Tensor) -> bool:
    layout, _ = _CHANNELS_LAST.get(grad.dim(), (torch.contiguous_format, ()))
    return grad.is_contiguous() or grad.is_contiguous(memory_format=layout)


class FlatWire:
    """Several gradients that are sent as one tensor of another dtype. One kernel launch casts all of them."""

    __slots__ = ("_grads", "_number", "_parts", "_views", "descriptors", "tensors")

    @staticmethod
    def of(grads: Sequence[torch.Tensor], compression: type[Compressor]) -> FlatWire | None:
        """None unless the compression casts all of them, and each is contiguous or channels_last."""
        if not (isinstance(compression, type) and issubclass(compression, CastCompressor)):
            return None
        suit = all(g.dtype.is_floating_point and g.dtype != compression.wire and _is_dense(g) for g in grads)
        return FlatWire(grads, compression) if suit else None

    def __init__(self, grads: Sequence[torch.Tensor], compression: type[CastCompressor]) -> None:
        self._grads = [grad.detach() for grad in grads]
        flat = torch.empty(sum(g.numel() for g in grads), dtype=compression.wire, device=grads[0].device)
        self.tensors = [flat]
        self._views: list[torch.Tensor] = []
        self._parts: list[tuple[int, int, int]] = []  # for our own kernels: address of gradient, of its part, elements
        address, self._number = flat.data_ptr(), DTYPE_NUMBERS[compression.wire]
        if has_kernels(flat) and len({grad.dtype for grad in grads}) == 1:
            place = address
            for grad in grads:
                self._parts.append((grad.data_ptr(), place, grad.numel()))
                place += grad.numel() * flat.itemsize
        else:
            starts = itertools.accumulate((grad.numel() for grad in grads), initial=0)
            self._views = [flat.as_strided(g.shape, g.stride(), start) for g, start in zip(grads, starts, strict=False)]
        self._cast(to_wire=True)
        # Ranks whose gradients have other layouts would sum elements that do not belong together. The second tensor has
        # no elements, but its shape differs between such ranks, which is an error on every rank.
        layout = zlib.crc32(repr([(grad.shape, grad.stride()) for grad in grads]).encode())
        shapes = ((flat.numel(),), (0, layout))
        self.descriptors: list[Descriptor] = [
            (address, address, self._number, shape, device_number(flat)) for shape in shapes
        ]

    def _cast(self, to_wire: bool) -> None:
        if not self._parts:
            pair = (self._views, self._grads) if to_wire else (self._grads, self._views)
            torch._foreach_copy_(*pair)
            return
        device, own = self._grads[0].get_device(), DTYPE_NUMBERS[self._grads[0].dtype]
        stream = current_stream(device)
        if to_wire:
            core.gpu_convert(device, self._number, own, self._parts, stream)
        else:
            core.gpu_convert(device, own, self._number, [(out, in_, n) for in_, out, n in self._parts], stream)

    def put_back(self) -> None:
        """Writes the reduced values into the gradients."""
        self._cast(to_wire=False)


_kernels: dict[int, bool] = {}  # by GPU


def has_kernels(tensor: torch.Tensor) -> bool:
    """Whether Sirtaki's own kernels can cast this tensor."""
    if not tensor.is_cuda:
        return False
    device = tensor.get_device()
    if device not in _kernels:
        _kernels[device] = not core.gpu_card(device)[3]
    return _kernels[device]


AnyWire = Wire | InPlace | FlatWire
