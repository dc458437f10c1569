"""The cost of the flight recorder: 1 KiB allreduce, and a step of 32 small buckets, with it and without, in turns.

    python benchmarks/recorder_cost.py [--ranks 2] [--turns 6]

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
PROGRAM = """
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


def measure(ranks: int, recorder: str) -> dict[str, float]:
    """The figures of rank 0."""
    environ = {**os.environ, "PYTHONPATH": str(FRAMEWORKS), "SIRTAKI_RECORDER": recorder, "SIRTAKI_SUMMARY": "0"}
    command = [sys.executable, "-m", "sirtaki.launch", "-np", str(ranks), sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(("[0] ", "{")))
    figures: dict[str, float] = json.loads(line.removeprefix("[0] "))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6, help="jobs with the recorder, and as many without")
    arguments = parser.parse_args()
    turns = [(setting, measure(arguments.ranks, setting)) for _ in range(arguments.turns) for setting in "10"]
    for what in turns[0][1]:
        on, off = (min(figures[what] for setting, figures in turns if setting == wanted) for wanted in "10")
        print(f"{what}: on {on:.2f} us, off {off:.2f} us, ratio {on / off:.3f}")


if __name__ == "__main__":
    main()
