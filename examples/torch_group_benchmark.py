"""torch.distributed over Sirtaki and over gloo, in turns in one run: allreduce, DDP and FSDP2.

sirtakirun -np 2 python examples/torch_group_benchmark.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd

Ways = dict[str, Callable[[], object]]


def in_turns(ways: Ways, rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds of one call, for each way and round. All ranks begin a round together."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, call in ways.items():
            hvd.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: values[1:] for name, values in times.items()}  # the first round warms up


def report(what: str, times: dict[str, list[float]]) -> None:
    """One line for each way; ratios to gloo."""
    if dist.get_rank() != 0:
        return
    for name, values in times.items():
        least, median = (function(values) for function in (min, statistics.median))
        ratios = [function(times["gloo"]) / function(values) for function in (min, statistics.median)]
        print(
            f"{what:<18} {name:<8} {least:11.1f} us least {median:11.1f} us median"
            f"   gloo is {ratios[0]:5.2f} and {ratios[1]:5.2f} times that",
            flush=True,
        )


def allreduces(gloo: dist.ProcessGroup, elements: int) -> Ways:
    tensor = torch.ones(elements)
    return {
        "gloo": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=gloo),
        "sirtaki": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        "hvd": lambda: hvd.allreduce_(tensor, op=hvd.Max, name=f"benchmark.{elements}"),
    }


def training(wrap: Callable[[nn.Module], nn.Module], width: int) -> Callable[[], None]:
    torch.manual_seed(1)
    module = wrap(nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    batch = torch.randn(16, width)

    def step() -> None:
        optimizer.zero_grad()
        module(batch).square().mean().backward()
        optimizer.step()

    return step


def sharded(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1024, help="of each of the eight layers that are trained")
    arguments = parser.parse_args()
    dist.init_process_group("sirtaki")
    gloo = dist.new_group(backend="gloo")
    for name, nbytes, calls in (("1 KiB", 1 << 10, 100), ("64 KiB", 1 << 16, 50), ("25 MiB", 25 << 20, 3)):
        report(f"allreduce {name}", in_turns(allreduces(gloo, nbytes // 4), arguments.rounds, calls))
    groups = {"gloo": gloo, "sirtaki": dist.group.WORLD}
    for what, wrap in (
        ("DDP step", lambda group: lambda module: DistributedDataParallel(module, process_group=group)),
        ("FSDP2 step", lambda group: lambda module: sharded(module, DeviceMesh.from_group(group, "cpu"))),
    ):
        ways = {name: training(wrap(group), arguments.width) for name, group in groups.items()}
        report(what, in_turns(ways, arguments.rounds, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
