"""Sums and averages of gathered rows, by the rule of docs/arithmetic.md."""

from __future__ import annotations

import torch

_HALVES = (torch.float16, torch.bfloat16)


def _added(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The coalesced COO tensor of rows (rows, sparse dimensions) and their values."""
    return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False).coalesce()


def _with_values(like: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(like.indices(), values, like.shape, is_coalesced=True, check_invariants=False)


def sum_rows(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Each row once. 16-bit floats are summed in float32."""
    if values.dtype not in _HALVES:
        return _added(indices, values, shape)
    total = _added(indices, values.float(), shape)
    return _with_values(total, total.values().to(values.dtype))


def average_rows(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, ranks: int) -> torch.Tensor:
    """Each row once, divided by `ranks`, in the values' dtype. Integers are truncated toward zero."""
    if values.is_floating_point():
        return _average_floats(indices, values, shape, ranks)
    if values.is_complex():
        return _added(indices, values, shape) / ranks
    return _average_integers(indices, values, shape, ranks)


def _average_floats(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, ranks: int) -> torch.Tensor:
    """Divides by a power of two first, which rounds nothing, so that no sum overflows. A finite sum must give a finite
    average, also after rounding.
    """
    power = 1 << (ranks - 1).bit_length()
    wide = values.float() if values.dtype in _HALVES else values
    total = _added(indices, wide / power, shape)
    most = torch.finfo(wide.dtype).max
    average = total.values() / (ranks / power)
    average = torch.where(total.values().isfinite(), average.clamp(-most, most), average)
    return _with_values(total, average.to(values.dtype))


def _average_integers(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, ranks: int) -> torch.Tensor:
    """By quotients and remainders, whose sums fit into 64 bits."""
    wide = values.to(torch.int64)
    quotients = wide.div(ranks, rounding_mode="floor")
    total = _added(indices, quotients, shape)
    rest = _added(indices, wide - quotients * ranks, shape).values()
    down = total.values() + rest.div(ranks, rounding_mode="floor")
    average = down + ((down < 0) & (rest % ranks != 0)).to(torch.int64)
    return _with_values(total, average.to(values.dtype))
