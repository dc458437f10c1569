"""An allreduce where ranks share cores: MPI and Sirtaki, a few calls of each in turn, with ratios.

    mpiexec -n 4 python benchmarks/shared_cores.py     # on a machine, or bound to, two cores

An operation lasts from when the last rank has come until the last one has left. Needs one host, which has one clock.
"""

import statistics
import time
from collections.abc import Callable

import torch
from mpi4py import MPI

import sirtaki.torch as hvd

WORLD = MPI.COMM_WORLD
SIZES = (256, 4096, 16384, 65536, 262144)  # float32 elements
CALLS, WARM = 6, 2  # of one way in a row, and those of them that do not count


def seconds(operation: Callable[[], object]) -> float:
    WORLD.Barrier()
    start = time.monotonic()
    operation()
    end = time.monotonic()
    return WORLD.allreduce(end, op=MPI.MAX) - WORLD.allreduce(start, op=MPI.MAX)


def measure(count: int, rounds: int) -> dict[str, float]:
    """Medians by way, in seconds."""
    own, ours = torch.ones(count), torch.ones(count)
    ways: dict[str, Callable[[], object]] = {
        "MPI": lambda: WORLD.Allreduce(MPI.IN_PLACE, own.numpy()),
        "Sirtaki": lambda: hvd.allreduce_(ours, name=f"of {count}", op=hvd.Sum),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, operation in ways.items():
            for call in range(CALLS):
                own.fill_(1)
                ours.fill_(1)
                taken = seconds(operation)
                if call >= WARM:
                    times[name].append(taken)
    if ours[0] != WORLD.size or ours[-1] != WORLD.size:
        raise SystemExit(f"rank {WORLD.rank}: a wrong sum of {count} elements")
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    measure(SIZES[0], 20)  # until the ranks' start is over
    for count in SIZES:
        medians = measure(count, 25 if count <= SIZES[-2] else 8)
        if WORLD.rank == 0:
            ratio = medians["Sirtaki"] / medians["MPI"]
            shown = ", ".join(f"{name} {median * 1e6:.0f} us" for name, median in medians.items())
            print(f"{4 * count} bytes: {shown}, Sirtaki/MPI {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
