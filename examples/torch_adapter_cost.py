"""What Sirtaki's adapter costs the host in each step of training, apart from waiting for other ranks."""

import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch


def adapter_seconds(hvd, sizes: Sequence[int], rounds: int = 200) -> float:
    """Processor time of the training thread, in seconds a step, that DistributedOptimizer adds to backward and step.

    sizes: bytes of each parameter of the model. There are as many parameters here, in as many batches, but of one
    element each and on the host: the adapter's work depends on their number, and does not drown in computing. Steps
    with and without it take turns, each as often first after the ranks have met, when caches are colder; the mean of
    the two medians of the differences, less what the thread spent in waits. All ranks call it.
    """
    from sirtaki.native import core
    from sirtaki.torch.gradients.buckets import BUCKET_BYTES

    batches = math.ceil(sum(sizes) / BUCKET_BYTES["cpu"])
    plain = _trainer(len(sizes), lambda optimizer, named: optimizer)
    distributed = _trainer(
        len(sizes), lambda optimizer, named: hvd.DistributedOptimizer(optimizer, named_parameters=named, groups=batches)
    )
    core.time_waits()
    differences: list[list[float]] = [[], []]
    for number in range(rounds):
        hvd.barrier()
        before = _processor_time(plain) if number % 2 else 0.0
        waited = core.statistics()["wait_cpu_ns"]
        own = _processor_time(distributed)
        waited = core.statistics()["wait_cpu_ns"] - waited
        without = before or _processor_time(plain)
        differences[number % 2].append(own - waited * 1e-9 - without)
    return statistics.mean(statistics.median(part[rounds // 20 :]) for part in differences)


def _processor_time(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def _trainer(count: int, wrap: Callable[..., torch.optim.Optimizer]) -> Callable[[], None]:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(count)]
    named = [(f"adapter_cost.{number}", parameter) for number, parameter in enumerate(parameters)]
    optimizer = wrap(torch.optim.SGD(parameters, lr=0.0), named)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack(parameters).sum().backward()
        optimizer.step()

    return step
