"""Collectives on GPUs through Sirtaki and through torch.distributed's NCCL, in one run on the same tensors.

    sirtakirun -np 4 python examples/gpu_collective_benchmark.py --verb all

Each rank needs a GPU of its own for NCCL; ranks that share one compare Sirtaki's way by the host's memory with gloo's.
The ways take turns. For each size of each verb's longer side: the host's time until the call returns, the GPU's time
until the result, and the bus bandwidth that follows, counted as nccl-tests do. Then all gradients of ResNet-50 in
flight at once, from the first request to the last result. Medians; results are checked.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import byte_sizes
import gpu_verbs
import resnet
import torch
import torch.distributed as dist
import torch_group
from gpu_verbs import Call

import sirtaki.torch as hvd

SIZES = ("4", "1KiB", "64KiB", "1MiB", "16MiB", "64MiB", "256MiB", "1GiB")


def by_sirtaki(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    handles = [hvd.allreduce_async_(tensor, name=f"bench.{i}", op=hvd.Sum) for i, tensor in enumerate(tensors)]
    return [hvd.synchronize(handle) for handle in handles]


def by_sirtaki_grouped(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return hvd.grouped_allreduce_(tensors, name="bench.group", op=hvd.Sum)


def by_torch(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    return tensors


def measure(verb: str, call: Call, tensors: list[torch.Tensor], step: int) -> tuple[float, float]:
    """Seconds of the host and of the GPU for one call; the result is checked."""
    value = 1 + step % 20
    for tensor in tensors:
        tensor.fill_(value + hvd.rank())
    torch.cuda.synchronize()
    hvd.barrier()
    begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begins.record()
    start = time.perf_counter()
    results = call(tensors)
    on_host = time.perf_counter() - start
    ends.record()
    torch.cuda.synchronize()
    expected = gpu_verbs.due(verb, value)
    for tensor in (results[0], results[-1]):
        if tensor.view(-1)[-1].item() != expected:
            raise RuntimeError(f"{verb}: got {tensor.view(-1)[-1].item()} where {expected} was due")
    return on_host, begins.elapsed_time(ends) / 1e3


def compare(
    verb: str, ways: dict[str, Call], tensors: list[torch.Tensor], rounds: int
) -> dict[str, tuple[float, float]]:
    """Medians (host, GPU) of each way, of the slowest rank."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 3):
        for name, call in ways.items():
            one = measure(verb, call, tensors, turn)
            if turn >= 3:
                found[name].append(one)
    medians = {
        name: tuple(statistics.median(column) for column in zip(*ones, strict=True)) for name, ones in found.items()
    }
    by_rank = hvd.allgather_object(medians)
    return {name: (max(r[name][0] for r in by_rank), max(r[name][1] for r in by_rank)) for name in ways}


def shown(verb: str, times: tuple[float, float], nbytes: int, base: tuple[float, float] | None) -> str:
    bus = nbytes / times[1] / 1e9 * gpu_verbs.bus_share(verb)
    ratio = "" if base is None else f"  ({base[0] / times[0]:.2f}x, {base[1] / times[1]:.2f}x)"
    return f"host {times[0] * 1e6:8.1f} us, GPU {times[1] * 1e6:9.1f} us, bus {bus:6.1f} GB/s{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--verb", choices=(*gpu_verbs.VERBS, "all"), default="allreduce")
    parser.add_argument("--sizes", nargs="*", default=SIZES, help="e.g. 4KiB 16MiB")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
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
    say(f"torch's backend: {backend}; in brackets, torch's time over Sirtaki's on the host and on the GPU")
    rows = []

    def report(verb: str, label: str, nbytes: int, found: dict[str, tuple[float, float]]) -> None:
        for way, times in found.items():
            base = None if way == "torch" else found["torch"]
            say(f"{verb:>13} {label:>13} {way:16} {shown(verb, times, nbytes, base)}")
            rows.append({"verb": verb, "size": label, "bytes": nbytes, "way": way, "host": times[0], "gpu": times[1]})

    for verb in gpu_verbs.VERBS if arguments.verb == "all" else (arguments.verb,):
        for text in arguments.sizes:
            length = max(byte_sizes.parse(text) // dtype.itemsize // hvd.size(), 1) * hvd.size()
            tensor = torch.empty(length, dtype=dtype, device="cuda")
            found = compare(verb, gpu_verbs.ways(verb, tensor), [tensor], arguments.rounds)
            report(verb, text, tensor.nbytes, found)
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in resnet.make("resnet50").parameters()]
    gradients = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
    nbytes = sum(gradient.nbytes for gradient in gradients)
    ways = {"torch": by_torch, "Sirtaki": by_sirtaki, "Sirtaki, grouped": by_sirtaki_grouped}
    found = compare("allreduce", ways, gradients, arguments.rounds)
    report("allreduce", f"{len(shapes)} gradients", nbytes, found)
    if arguments.json and hvd.rank() == 0:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    hvd.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
