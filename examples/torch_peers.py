"""What synthetic_benchmark.py compares Sirtaki with in PyTorch, each a function that trains one batch."""

import inspect
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch_group
from torch.nn.parallel import DistributedDataParallel


def peers(benchmark) -> dict[str, Callable[[], float]]:
    """PyTorch's DistributedDataParallel, in its defaults and with the options that make it fastest; and "coupled":
    training without communication, but for an allreduce of 4 bytes a step, which makes each step wait for the slowest
    rank. Eager training that communicates cannot be faster.
    """
    torch_group.start()
    tuned = {"static_graph": True, "broadcast_buffers": False, "gradient_as_bucket_view": True}
    if "batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters:
        tuned["batched_grad_copy"] = True
    return {"coupled": coupled(benchmark), "DDP": ddp(benchmark, {}), "tuned DDP": ddp(benchmark, tuned)}


def ddp(benchmark, options: dict[str, bool]) -> Callable[[], float]:
    model = benchmark.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = [benchmark.place.index] if benchmark.device == "GPU" else None
    network = DistributedDataParallel(model, device_ids=ids, **options)

    def train() -> float:
        optimizer.zero_grad()
        benchmark.loss(network, benchmark.inputs, benchmark.labels).backward()
        optimizer.step()
        return math.nan

    return train


def coupled(benchmark) -> Callable[[], float]:
    model = benchmark.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    one = torch.ones(1, device=benchmark.place)

    def train() -> float:
        optimizer.zero_grad()
        benchmark.loss(model, benchmark.inputs, benchmark.labels).backward()
        dist.all_reduce(one)
        optimizer.step()
        return math.nan

    return train
