"""Tests that need a GPU. Ranks share one where there are fewer GPUs than ranks; then their tensors travel by way of the
host, otherwise by NCCL."""

from __future__ import annotations

import pytest
import torch

import sirtaki.torch as hvd

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def own_gpu() -> torch.device:
    """This rank's GPU, made the current one."""
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def busy(milliseconds: int = 20) -> None:
    """Keeps the current stream busy, so that what does not wait for it comes too early."""
    torch.cuda._sleep(milliseconds * 1_500_000)
