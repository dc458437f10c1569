"""The cost of the flight recorder: with it and without, in turns within one job.

It times a 1 KiB allreduce of the core and one of torch, a step of 32 small buckets, and one of torch's
DistributedOptimizer with the 161 gradients of ResNet-50.

    python benchmarks/recorder_cost.py [--ranks 2] [--turns 40] [--only core|call|torch]

A turn leaves the job and joins it again, because init() reads the setting; its time is the least of many rounds, since
other work on the machine only adds time. A job may lie better or worse in memory. So each turn with the recorder is
compared with the next one without, and the median of these ratios is printed, with the range in which the true median
lies in 95 of 100 cases (by the binomial distribution of the ranks of a median).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

FRAMEWORKS = Path(__file__).resolve().parents[1] / "frameworks"
TURNS = """
import json, os, sys, time
def fastest(call, count, rounds):
    for _ in range(2 * count): call()
    best = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(count): call()
        best.append((time.perf_counter() - begin) / count)
    return min(best)
def compare(hvd, measure):
    found = {}
    for turn in range(2 * int(sys.argv[1])):
        setting = "10"[turn % 2]
        os.environ["SIRTAKI_RECORDER"] = setting
        hvd.init()
        for what, seconds in measure().items():
            found.setdefault(what, {"0": [], "1": []})[setting].append(seconds * 1e6)
        hvd.shutdown()
    print(json.dumps(found), flush=True)
"""
CORE = """
import ctypes, sirtaki as hvd
from sirtaki.native import core
def tensor(elements, keep=[]):
    keep.append((ctypes.c_float * elements)())
    address = ctypes.addressof(keep[-1])
    return (address, address, core.DTYPES["float32"], (elements,), -1)
def submit(name, of, awaited):
    return core.submit(core.VERBS["allreduce"], name, [of], site="cost.py:1", awaited=awaited)
one = tensor(256)
buckets = [tensor(256) for _ in range(32)]
def small():
    submit("small", one, True).wait()
def step():
    works = [submit(f"bucket{i}", of, i == 31) for i, of in enumerate(buckets)]
    for work in works: work.wait()
    core.end_step()
compare(hvd, lambda: {"1 KiB allreduce": fastest(small, 50, 300), "step of 32 buckets": fastest(step, 2, 200)})
"""
CALL = """
import torch, sirtaki.torch as hvd
tensor = torch.ones(256)
def call():
    hvd.allreduce(tensor, name="small", op=hvd.Sum)
compare(hvd, lambda: {"hvd.allreduce of 1 KiB": fastest(call, 50, 300)})
"""
# Its backward only hands on the gradients.
TORCH = """
import torch, sirtaki.torch as hvd
def shapes():
    yield from ((64, 3, 7, 7), (64,), (64,))
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            weights = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0: weights.append((4 * width, inputs, 1, 1))
            for weight in weights: yield from (weight, weight[:1], weight[:1])
            inputs = 4 * width
    yield from ((1000, 2048), (1000,))
def step(optimizer, parameters, gradients):
    begin = time.perf_counter()
    optimizer.zero_grad()
    torch.autograd.backward(parameters, gradients)
    optimizer.step()
    return time.perf_counter() - begin
def measure():
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes()]
    assert len(parameters) == 161
    named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named)
    gradients = [torch.ones_like(parameter) for parameter in parameters]
    for _ in range(2): step(optimizer, parameters, gradients)
    return {"ResNet-50's optimizer step": min(step(optimizer, parameters, gradients) for _ in range(5))}
compare(hvd, measure)
"""
PROGRAMS = {"core": TURNS + CORE, "call": TURNS + CALL, "torch": TURNS + TORCH}


def measured(program: str, ranks: int, turns: int) -> dict[str, dict[str, list[float]]]:
    """The turns of rank 0, with the recorder ("1") and without ("0"), in microseconds."""
    environ = {**os.environ, "PYTHONPATH": str(FRAMEWORKS), "SIRTAKI_SUMMARY": "0"}
    words = [sys.executable, "-m", "sirtaki.launch", "-np", str(ranks), sys.executable, "-c", program, str(turns)]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(("[0] ", "{")))
    figures: dict[str, dict[str, list[float]]] = json.loads(line.removeprefix("[0] "))
    return figures


def of_median(values: list[float]) -> tuple[float, float, float]:
    """The median, and the ends of its range."""
    ordered = sorted(values)
    outer = max(int(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))), 0)
    return statistics.median(ordered), ordered[outer], ordered[-1 - outer]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=40, help="with the recorder, and as many without")
    parser.add_argument("--only", choices=PROGRAMS, help="one of the programs")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else PROGRAMS:
        for what, turns in measured(PROGRAMS[name], arguments.ranks, arguments.turns).items():
            ratio, low, high = of_median([on / off for on, off in zip(turns["1"], turns["0"], strict=True)])
            on, off = statistics.median(turns["1"]), statistics.median(turns["0"])
            print(f"{what}: on {on:.2f} us, off {off:.2f} us, ratio {ratio:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
