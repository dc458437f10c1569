"""Allreduce on GPUs through Sirtaki and through torch.distributed's NCCL, in one run on the same tensors.

    sirtakirun -np 4 python examples/gpu_collective_benchmark.py

Each rank needs a GPU of its own for NCCL; ranks that share one compare Sirtaki's way by the host's memory with gloo's.
The ways take turns. For each size: the host's time to ask for one allreduce and to be told to go on, the GPU's time
from the request to the result, and the bus bandwidth that follows (2 (n - 1) / n bytes over the GPU's time, as
nccl-tests counts). Then all gradients of ResNet-50 in flight at once, from the first request to the last result.
Medians; results are checked.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import byte_sizes
import resnet
import torch
import torch.distributed as dist
import torch_group

import sirtaki.torch as hvd

SIZES = ("4", "1KiB", "64KiB", "1MiB", "16MiB", "64MiB", "256MiB", "1GiB")
Call = Callable[[list[torch.Tensor]], None]


def by_sirtaki(tensors: list[torch.Tensor]) -> None:
    if len(tensors) == 1:
        hvd.allreduce_(tensors[0], name="bench.one", op=hvd.Sum)
        return
    handles = [hvd.allreduce_async_(tensor, name=f"bench.{i}", op=hvd.Sum) for i, tensor in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def by_sirtaki_grouped(tensors: list[torch.Tensor]) -> None:
    hvd.grouped_allreduce_(tensors, name="bench.group", op=hvd.Sum)


def by_torch(tensors: list[torch.Tensor]) -> None:
    if len(tensors) == 1:
        dist.all_reduce(tensors[0])
        return
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


def measure(call: Call, tensors: list[torch.Tensor], step: int) -> tuple[float, float]:
    """Seconds of the host and of the GPU for one call; the result is checked."""
    value = 1 + step % 20
    for tensor in tensors:
        tensor.fill_(value + hvd.rank())
    torch.cuda.synchronize()
    hvd.barrier()
    begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begins.record()
    start = time.perf_counter()
    call(tensors)
    on_host = time.perf_counter() - start
    ends.record()
    torch.cuda.synchronize()
    expected = value * hvd.size() + sum(range(hvd.size()))
    for tensor in (tensors[0], tensors[-1]):
        if tensor.view(-1)[-1].item() != expected:
            raise RuntimeError(f"got {tensor.view(-1)[-1].item()} where {expected} was due")
    return on_host, begins.elapsed_time(ends) / 1e3


def compare(ways: dict[str, Call], tensors: list[torch.Tensor], rounds: int) -> dict[str, tuple[float, float]]:
    """Medians (host, GPU) of each way, of the slowest rank."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 3):
        for name, call in ways.items():
            one = measure(call, tensors, turn)
            if turn >= 3:
                found[name].append(one)
    medians = {
        name: tuple(statistics.median(column) for column in zip(*ones, strict=True)) for name, ones in found.items()
    }
    by_rank = hvd.allgather_object(medians)
    return {name: (max(r[name][0] for r in by_rank), max(r[name][1] for r in by_rank)) for name in ways}


def shown(times: tuple[float, float], nbytes: int, base: tuple[float, float] | None) -> str:
    bus = nbytes / times[1] / 1e9 * 2 * (hvd.size() - 1) / hvd.size()
    ratio = "" if base is None else f"  ({base[0] / times[0]:.2f}x, {base[1] / times[1]:.2f}x)"
    return f"host {times[0] * 1e6:8.1f} us, GPU {times[1] * 1e6:9.1f} us, bus {bus:6.1f} GB/s{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="*", default=SIZES, help="e.g. 4KiB 16MiB")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    arguments = parser.parse_args()
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    dtype = getattr(torch, arguments.dtype)
    backend = torch_group.start()

    def say(line: str) -> None:
        if hvd.rank() == 0:
            print(line, flush=True)

    say(f"{hvd.size()} rank(s), {torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.dtype}")
    say(f"SIRTAKI_GPU_OPERATIONS={os.environ.get('SIRTAKI_GPU_OPERATIONS', '')}, NCCL {hvd.nccl_built()}")
    ways: dict[str, Call] = {"torch": by_torch, "Sirtaki": by_sirtaki}
    say(f"torch's backend: {backend}; in brackets, torch's time over Sirtaki's on the host and on the GPU")
    for text in arguments.sizes:
        nbytes = byte_sizes.parse(text)
        tensor = torch.empty(max(nbytes // dtype.itemsize, 1), dtype=dtype, device="cuda")
        for name, times in (found := compare(ways, [tensor], arguments.rounds)).items():
            say(f"{text:>8} {name:18} {shown(times, nbytes, found.get('torch') if name != 'torch' else None)}")
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in resnet.make("resnet50").parameters()]
    gradients = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
    nbytes = sum(gradient.nbytes for gradient in gradients)
    found = compare({**ways, "Sirtaki, grouped": by_sirtaki_grouped}, gradients, arguments.rounds)
    say(f"{len(shapes)} gradients of ResNet-50, {nbytes / 1e6:.0f} MB:")
    for name, times in found.items():
        say(f"         {name:18} {shown(times, nbytes, found.get('torch') if name != 'torch' else None)}")
    hvd.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
