"""The cost of the flight recorder: jobs with it and without, in turns.

They time a 1 KiB allreduce, a step of 32 small buckets, and one of torch's DistributedOptimizer with the 161 gradients
of ResNet-50.

    python benchmarks/recorder_cost.py [--ranks 2] [--turns 6] [--only core|torch]

Prints microseconds (the least of all turns) and the ratio on/off. Each turn is a job of its own, because the setting is
read by init(). Minima are compared, since other work on the machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

FRAMEWORKS = Path(__file__).resolve().parents[1] / "frameworks"
CORE = """
import ctypes, json, time, sirtaki as hvd
from sirtaki.native import core
hvd.init()
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
def fastest(call, count, rounds):
    for _ in range(60 * count): call()  # fills the rings once, so that their pages are there
    best = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(count): call()
        best.append((time.perf_counter() - begin) / count)
    return min(best) * 1e6
print(json.dumps({"1 KiB allreduce": fastest(small, 200, 40), "step of 32 buckets": fastest(step, 20, 40)}), flush=True)
"""
# Its backward only makes the gradients.
TORCH = """
import json, time, torch, sirtaki.torch as hvd
hvd.init()
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
parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes()]
assert len(parameters) == 161
named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named)
def step():
    begin = time.perf_counter()
    optimizer.zero_grad()
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    return time.perf_counter() - begin
for _ in range(5): step()
print(json.dumps({"ResNet-50's optimizer step": min(step() for _ in range(40)) * 1e6}), flush=True)
"""
PROGRAMS = {"core": CORE, "torch": TORCH}


def measure(program: str, ranks: int, recorder: str) -> dict[str, float]:
    """The figures of rank 0."""
    environ = {**os.environ, "PYTHONPATH": str(FRAMEWORKS), "SIRTAKI_RECORDER": recorder, "SIRTAKI_SUMMARY": "0"}
    command = [sys.executable, "-m", "sirtaki.launch", "-np", str(ranks), sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(("[0] ", "{")))
    figures: dict[str, float] = json.loads(line.removeprefix("[0] "))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6, help="jobs with the recorder, and as many without")
    parser.add_argument("--only", choices=PROGRAMS, help="one of the programs")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else PROGRAMS:
        compare(PROGRAMS[name], arguments.ranks, arguments.turns)


def compare(program: str, ranks: int, count: int) -> None:
    turns = [(setting, measure(program, ranks, setting)) for _ in range(count) for setting in "10"]
    for what in turns[0][1]:
        on, off = (min(figures[what] for setting, figures in turns if setting == wanted) for wanted in "10")
        print(f"{what}: on {on:.2f} us, off {off:.2f} us, ratio {on / off:.3f}", flush=True)


if __name__ == "__main__":
    main()
