"""Describes torch tensors to the core, and makes torch tensors from the core's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core
from sirtaki.reduce_ops import Average, ReduceOp, Sum

# (address to read, address to write or 0, dtype number, shape, device number)
Descriptor = tuple[int, int, int, tuple[int, ...], int]

HOST = -1
DTYPE_NUMBERS: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in core.DTYPES.items() if hasattr(torch, name)
}
# Dtypes without a number in the core: each element is sent as so many elements of another dtype.
_PARTS: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.complex32: (torch.float16, 2),
    torch.complex64: (torch.float32, 2),
    torch.complex128: (torch.float64, 2),
    **{getattr(torch, name): (torch.uint8, 1) for name in dir(torch) if name.startswith("float8_")},
}
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def device_number(tensor: torch.Tensor) -> int:
    """-1 for host memory, otherwise the GPU's number; ValueError for other devices."""
    if tensor.is_cuda:
        return tensor.get_device()
    if tensor.is_cpu:
        return HOST
    raise ValueError(f"tensors must be on cpu or cuda, got one on {tensor.device} (shape {tuple(tensor.shape)})")


def check_tensor(tensor: Any, what: str = "tensor") -> int:
    """The dtype number of the tensor. ValueError with the reason if the core cannot read it."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{what} must be a torch.Tensor, got {_shown(tensor)}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what} must be dense, got layout {tensor.layout} (sparse: use sparse_allreduce_async)")
    number = DTYPE_NUMBERS.get(tensor.dtype)
    if number is None:
        if tensor.dtype not in _PARTS:
            raise ValueError(f"Tensor type {tensor.dtype} is not supported.")
        number = DTYPE_NUMBERS[_PARTS[tensor.dtype][0]]
    if type(tensor) not in _PLAIN_TYPES and type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
        raise ValueError(f"{what} must be a plain torch.Tensor, got a {type(tensor).__qualname__}")
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            f"Tensor is required to be contiguous. Got {what} of shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}"
        )
    return number


def check_tensors(tensors: Any) -> list[torch.Tensor]:
    """The tensors of a grouped call as a list. ValueError if it is empty or the core cannot read one of them."""
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise ValueError(f"a grouped call takes a list of tensors, got {_shown(tensors)}")
    listed = list(tensors)
    if not listed:
        raise ValueError("a grouped call takes at least one tensor, got an empty list")
    for number, tensor in enumerate(listed):
        check_tensor(tensor, f"tensors[{number}]")
    first = device_number(listed[0])
    if any(device_number(tensor) != first for tensor in listed):
        devices = sorted({str(tensor.device) for tensor in listed})
        raise SirtakiInternalError(f"the tensors of a grouped call must be on one device, got {devices}")
    return listed


def describe(tensor: torch.Tensor, output: torch.Tensor | None) -> Descriptor:
    """Checks the tensor. output: where the result goes; None if the core allocates it."""
    number = check_tensor(tensor)
    address = tensor.data_ptr()
    out = 0 if output is None else output.data_ptr()
    shape = tuple(tensor.shape)
    if tensor.dtype in _PARTS and (count := _PARTS[tensor.dtype][1]) > 1:
        shape = (*shape, count)
    return (address, out, number, shape, device_number(tensor))


def check_reducible(tensor: torch.Tensor, op: int) -> None:
    """ValueError if the dtype is sent as another one for which the operation would give a wrong result."""
    if tensor.dtype not in _PARTS:
        return
    if not tensor.dtype.is_complex:
        raise ValueError(f"Tensor type {tensor.dtype} is not supported in reductions; cast it first")
    if op not in (Sum, Average):
        raise ValueError(f"complex tensors can be reduced with Sum or Average, got {ReduceOp(op)!r}")


def result_shape(shape: Sequence[int], like: torch.Tensor) -> tuple[int, ...]:
    """The shape of a result with the dtype of `like`. shape: the core's shape, which counts parts of elements."""
    parts = _PARTS[like.dtype][1] if like.dtype in _PARTS else 1
    return tuple(shape) if parts == 1 else tuple(shape)[:-1]


def check_output(out: torch.Tensor, tensor: torch.Tensor) -> None:
    """ValueError if `out` cannot hold the result of a verb that changes the number of rows of this tensor."""
    check_tensor(out, "out")
    same = out.dtype == tensor.dtype and out.device == tensor.device
    if not same or out.dim() != tensor.dim() or out.shape[1:] != tensor.shape[1:]:
        rows = ", ".join(["rows", *map(str, tensor.shape[1:])])
        raise ValueError(
            f"out must be {tensor.dtype} on {tensor.device} with shape ({rows}), as the tensor; "
            f"got {out.dtype} on {out.device} with shape {tuple(out.shape)}"
        )
    if torch.is_grad_enabled() and (tensor.requires_grad or out.requires_grad):
        raise ValueError("out has no gradient, but the tensor or out requires one; use out under torch.no_grad()")


def check_outputs(outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The outputs of as many tensors; ValueError as check_output."""
    for out, tensor in zip(outputs, tensors, strict=True):
        check_output(out, tensor)
    return outputs


def empty_result(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a result of the same shape, without a gradient."""
    return empty_memory(tensor.shape, tensor.dtype, tensor.device)


def empty_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Large blocks on the host come from the core, which keeps them for the next call."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type == "cpu" and nbytes >= core.LARGE_BLOCK:
        return over_buffer(core.new_buffer(nbytes), shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def over_buffer(buffer: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the core's memory, which the core may use again once no tensor has this storage."""
    flat = torch.frombuffer(buffer, dtype=dtype)
    return flat if len(shape) == 1 else flat.resize_(tuple(shape))  # the same size; a view would keep `flat` alive


def from_buffer(buffer: Any, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """A tensor that uses the core's host memory, without a copy."""
    if buffer is None or len(buffer) == 0:
        return torch.empty(result_shape(shape, like), dtype=like.dtype)
    return over_buffer(buffer, result_shape(shape, like), like.dtype)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
