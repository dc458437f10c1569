"""The time of a synchronous allreduce of 1 KiB by Sirtaki and by MPI, at once after another and after some rest.

    sirtakirun -np 2 python benchmarks/after_idle.py

The ways take turns. All ranks rest until the same moment; an operation lasts from when the last rank has come until the
last one has left.
"""

import statistics
import time

import torch
from mpi4py import MPI

import sirtaki.torch as hvd

COMM = MPI.COMM_WORLD
RESTS = (0.0, 1.0, 5.0, 50.0)  # ms
ROUNDS = 40
AT_ONCE = 5  # operations of a turn without rest


def operate(call, rest: float) -> tuple[float, float]:
    """When the operation began and ended on this rank."""
    COMM.Barrier()
    if rest:
        moment = COMM.bcast(time.monotonic() + rest / 1e3)
        time.sleep(max(0.0, moment - time.monotonic()))
    start = time.monotonic()
    call()
    return start, time.monotonic()


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones(256)
    ways = {
        "Sirtaki": lambda: hvd.allreduce_(tensor, name="small", op=hvd.Max),
        "MPI": lambda: COMM.Allreduce(MPI.IN_PLACE, tensor.numpy(), MPI.MAX),
    }
    stamps = {(rest, name): [] for rest in RESTS for name in ways}
    for _ in range(ROUNDS):
        for rest in RESTS:
            for name, call in ways.items():
                operate(call, rest)
                stamps[rest, name] += [operate(call, rest) for _ in range(1 if rest else AT_ONCE)]
    if COMM.rank == 0:
        print(f"{'rest':>8} {'way':8} {'p10':>8} {'p50':>8} {'p90':>8}   {COMM.size} ranks, us")
    for (rest, name), own in stamps.items():
        operations = zip(*COMM.allgather(own), strict=True)
        seconds = [max(end for _, end in one) - max(start for start, _ in one) for one in operations]
        deciles = statistics.quantiles(seconds, n=10)
        if COMM.rank == 0:
            figures = " ".join(f"{deciles[at] * 1e6:8.1f}" for at in (0, 4, 8))
            print(f"{rest:5.0f} ms {name:8} {figures}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
