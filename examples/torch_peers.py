"""What synthetic_benchmark.py compares Sirtaki with in PyTorch, each a function that trains one batch."""

import contextlib
import importlib
import inspect
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch_group
from torch.nn.parallel import DistributedDataParallel


def peers(benchmark) -> dict[str, Callable[[], float]]:
    """PyTorch's DistributedDataParallel, in its defaults and with the options that make it fastest; FSDP2's replicate
    where this torch has it; and "coupled": training without communication, but for an allreduce of 4 bytes a step,
    which makes each step wait for the slowest rank. Eager training that communicates cannot be faster. With --capture
    also a CUDA graph of torch's own allreduces.
    """
    torch_group.start()
    tuned = {"static_graph": True, "broadcast_buffers": False, "gradient_as_bucket_view": True}
    if "batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters:
        tuned["batched_grad_copy"] = True
    ways = {"coupled": coupled(benchmark), "DDP": ddp(benchmark, {}), "tuned DDP": ddp(benchmark, tuned)}
    if benchmark.device == "GPU":
        if not benchmark.arguments.channels_last:  # FSDP2 takes contiguous parameters only
            with contextlib.suppress(ImportError):
                replicate = importlib.import_module("torch.distributed._composable.replicate_with_fsdp").replicate
                ways["FSDP2 replicate"] = replicated(benchmark, replicate)
        if benchmark.arguments.capture:
            ways["graph, torch's NCCL"] = captured_by_hand(benchmark)
    return ways


def ddp(benchmark, options: dict[str, bool]) -> Callable[[], float]:
    ids = [benchmark.place.index] if benchmark.device == "GPU" else None
    return trainer(benchmark, DistributedDataParallel(benchmark.model(), device_ids=ids, **options))


def trainer(benchmark, network: torch.nn.Module) -> Callable[[], float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

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


def replicated(benchmark, replicate: Callable) -> Callable[[], float]:
    """Each child with parameters is a unit of communication, as FSDP2's own examples take a model's layers."""
    model = benchmark.model()
    for child in model.children():
        if any(True for _ in child.parameters()):
            replicate(child)
    replicate(model)
    return trainer(benchmark, model)


def captured_by_hand(benchmark, bucket_bytes: int = 25 << 20) -> Callable[[], float]:
    """One step as a CUDA graph in which torch.distributed averages buckets on a second stream, beside backward."""
    model = benchmark.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    communication = torch.cuda.Stream()
    ready: list[torch.Tensor] = []

    def send() -> None:
        gradients = [parameter.grad for parameter in ready]
        ready.clear()
        communication.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(communication):
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            parts = flat.split([gradient.numel() for gradient in gradients])
            same = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
            torch._foreach_copy_(gradients, same)

    def add(parameter: torch.Tensor) -> None:
        ready.append(parameter)
        if sum(one.nbytes for one in ready) >= bucket_bytes:
            send()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(add)

    def step() -> None:
        optimizer.zero_grad()
        benchmark.loss(model, benchmark.inputs, benchmark.labels, keeps=False).backward()
        if ready:
            send()
        torch.cuda.current_stream().wait_stream(communication)
        optimizer.step()

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(11):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def train() -> float:
        graph.replay()
        return math.nan

    return train
