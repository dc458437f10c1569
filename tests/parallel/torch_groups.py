"""torch.distributed over Sirtaki, and over gloo for comparison."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist

import sirtaki.torch as hvd


@contextlib.contextmanager
def groups() -> Iterator[dist.ProcessGroup]:
    """The default group is Sirtaki's; gives one of gloo with the same ranks."""
    dist.init_process_group("sirtaki")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own older names
            gloo = dist.new_group(backend="gloo")
            dist.barrier(gloo)  # a rank that leaves at once would end the others' connecting
            yield gloo
    finally:
        dist.destroy_process_group()


def of_rank(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Values from 1 to 4 that differ by rank, and that every dtype can hold."""
    generator = torch.Generator().manual_seed(1000 * seed + hvd.rank())
    values = torch.randint(1, 4, shape, generator=generator)
    if dtype.is_floating_point:
        return (values + torch.rand(shape, generator=generator)).to(dtype)
    return values.to(dtype)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Two ranks: bit for bit. More: gloo adds in another order, and rounds 16 bits at each addition."""
    steps = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-6, torch.float64: 1e-12}
    step = steps.get(ours.dtype, 0) if dist.get_world_size() > 2 else 0
    torch.testing.assert_close(ours, theirs, rtol=step, atol=step)
