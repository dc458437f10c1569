"""What each rank contributes, which every rank can compute, and what the collectives must make of it."""

from __future__ import annotations

import math
import os

import torch

import sirtaki.torch as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)
# With TEST_DEVICE=cuda the tests of the collectives take tensors on a GPU.
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-14}


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small numbers, none of them 0, that no other rank has."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        made = torch.randint(0, 2, shape, generator=generator).bool()
    elif dtype in INTEGERS:
        made = torch.randint(1, 6, shape, generator=generator).to(dtype)
    else:
        made = (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    return made.to(DEVICE)


def of_all(count: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    return [values(rank, shape, dtype, seed) for rank in range(count)]


def reduced(parts: list[torch.Tensor], op: int) -> torch.Tensor:
    """The reduction in float64 (integers: int64), cast back once; integer averages are truncated toward zero."""
    dtype = parts[0].dtype
    wide = torch.stack([part.to(torch.float64 if dtype in FLOATS else torch.int64) for part in parts])
    if op in (hvd.Sum, hvd.Average):
        result = wide.sum(0)
        if op == hvd.Average:
            result = result / len(parts) if dtype in FLOATS else result.div(len(parts), rounding_mode="trunc")
    else:
        one = {hvd.Min: torch.amin, hvd.Max: torch.amax, hvd.Product: torch.prod}[op]
        result = one(wide, 0)
    return result.to(dtype) if dtype != torch.bool else result != 0


def check(result: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """Same shape, dtype and values; floats within the rounding of a few operations."""
    assert result.shape == expected.shape, (what, result.shape, expected.shape)
    assert result.dtype == expected.dtype, (what, result.dtype, expected.dtype)
    if result.dtype in FLOATS:
        wide, target = result.double(), expected.double()
        limit = TOLERANCE[result.dtype] * (target.abs().max().item() if target.numel() else 1.0)
        worst = (wide - target).abs().max().item() if target.numel() else 0.0
        assert worst <= limit or math.isclose(worst, limit), (what, worst, limit)
    else:
        assert result.tolist() == expected.tolist(), what
