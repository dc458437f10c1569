"""The time of 161 asynchronous allreduces of ResNet-50's gradients on CPUs, by fusion threshold.

    sirtakirun -np 2 python benchmarks/fusion_threshold.py [blocks of each threshold]

The thresholds take turns in blocks of steps, in another order each time. The first steps of a block do not count: in
them the ranks agree on the new batches. Order of submission: as in backward, and at random on each rank.
"""

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples"))

import resnet
import torch

import sirtaki.torch as hvd
from sirtaki.native import core

THRESHOLDS = (0, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20)
STEPS, FIRST = 14, 6  # of a block; how many do not count


def step(tensors: list[torch.Tensor], order: list[int]) -> float:
    hvd.barrier()
    start = time.perf_counter()
    for handle in [hvd.allreduce_async_(tensors[i], op=hvd.Sum, name=f"gradient.{i}") for i in order]:
        hvd.synchronize(handle)
    return time.perf_counter() - start


def main(blocks: int) -> None:
    hvd.init()
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in resnet.make("resnet50").parameters()]
    tensors = [torch.zeros(shape) for shape in reversed(shapes)]
    shared, own = random.Random(1), random.Random(hvd.rank())
    times: dict[tuple[int, str], list[float]] = {}
    for _ in range(blocks):
        for threshold in shared.sample(THRESHOLDS, len(THRESHOLDS)):
            core.set_fusion_threshold(threshold)
            for how in ("in order", "at random"):
                for number in range(STEPS):
                    order = list(range(len(tensors)))
                    if how == "at random":
                        own.shuffle(order)
                    seconds = step(tensors, order)
                    if number >= FIRST:
                        times.setdefault((threshold, how), []).append(seconds)
    if hvd.rank() == 0:
        for (threshold, how), seconds in sorted(times.items()):
            least, median = min(seconds) * 1e3, statistics.median(seconds) * 1e3
            print(f"{threshold / (1 << 20):8.2f} MiB {how:9}  least {least:5.1f} ms, median {median:5.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
