"""What a collective costs where it follows other work, and where ranks arrive at different times, beside MPI's.

    sirtakirun -np 2 python benchmarks/mixed_use.py [rounds] [verb]

The time of a call is from the moment when the last rank calls until the last rank returns, in microseconds. Before each
call a rank does what the situation says, then all ranks meet in an MPI barrier. "Late": after the barrier one rank, in
turns, works for up to 1 ms more. The parts of a call:

* Python: outside the core, on rank 0;
* the core, planned: the same name each time, so that the ranks need no vote;
* the core, voted: a vote for each call;
* wake-up: what the planned call takes longer if ranks are late.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from mpi4py import MPI

import sirtaki.torch as hvd
from sirtaki.native import core

COMM = MPI.COMM_WORLD
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
Call = Callable[[], object]
Span = tuple[float, float]


def nothing() -> None:
    pass


def sort() -> None:
    torch.randn(50_000).sort()


def multiply() -> None:
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))


def in_core(spans: list[Span]) -> None:
    """From now on `spans` gets the time of each call of the core."""
    start_call = core.start_call

    def timed(*arguments: object) -> object:
        begun = time.monotonic()
        result = start_call(*arguments)
        spans.append((begun, time.monotonic()))
        return result

    core.start_call = timed


def calls(verb: str, nbytes: int) -> tuple[Call, Call, Call]:
    """(MPI's call, Sirtaki's with a plan, Sirtaki's with a vote)."""
    given, out = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
    part = given[: given.numel() // COMM.size]
    numbers = iter(range(1 << 30))
    ours = {
        "allreduce": lambda name: hvd.allreduce_(given, op=hvd.Sum, name=name),
        "allgather": lambda name: hvd.allgather(part, name=name, out=out),
        "broadcast": lambda name: hvd.broadcast_(given, 0, name=name),
        "alltoall": lambda name: hvd.alltoall(given, name=name, out=out),
        "reducescatter": lambda name: hvd.reducescatter(given, op=hvd.Sum, name=name, out=out[: part.numel()]),
    }[verb]
    theirs = {
        "allreduce": lambda: COMM.Allreduce(given.numpy(), out.numpy()),
        "allgather": lambda: COMM.Allgather(part.numpy(), out.numpy()),
        "broadcast": lambda: COMM.Bcast(given.numpy(), 0),
        "alltoall": lambda: COMM.Alltoall(given.numpy(), out.numpy()),
        "reducescatter": lambda: COMM.Reduce_scatter_block(given.numpy(), out.numpy()[: part.numel()]),
    }[verb]
    return theirs, lambda: ours(f"{verb}.{nbytes}"), lambda: ours(f"{verb}.{nbytes}.{next(numbers) % 64}")


def measure(call: Call, before: Call, late: float) -> Span:
    """late: seconds by which this rank comes later than the others."""
    before()
    COMM.Barrier()
    until = time.monotonic() + late
    while time.monotonic() < until:
        pass
    start = time.monotonic()
    call()
    return start, time.monotonic()


def until_last(spans: list[Span]) -> float:
    """The median time from the last rank's begin to the last rank's end, in microseconds."""
    by_rank = COMM.allgather(spans)
    return (
        statistics.median(
            max(end for _, end in one) - max(start for start, _ in one) for one in zip(*by_rank, strict=True)
        )
        * 1e6
    )


def situation(ways: tuple[Call, ...], before: Call, late: bool, rounds: int, cores: list[Span]) -> list[float]:
    """[MPI, planned, voted, Python, planned in the core, voted in the core]."""
    shared = random.Random(1)
    spans: list[list[Span]] = [[] for _ in ways]
    inside: list[list[Span]] = [[] for _ in ways]
    # One way after the other: ranks cannot plan a call while calls of other names come between.
    for way, call in enumerate(ways):
        for number in range(rounds + 4):
            delay = shared.random() * 1e-3 if late and shared.randrange(COMM.size) == COMM.rank else 0.0
            cores.clear()
            span = measure(call, before, delay)
            if number >= 4:
                spans[way].append(span)
                inside[way] += cores
    outside = [end - start - (b - a) for (start, end), (a, b) in zip(spans[1], inside[1], strict=True)]
    python = COMM.bcast(statistics.median(outside)) * 1e6
    return [*map(until_last, spans), python, until_last(inside[1]), until_last(inside[2])]


def main(rounds: int, verb: str) -> None:
    hvd.init()
    cores: list[Span] = []
    in_core(cores)
    situations = [("loop", nothing, False), ("after a sort", sort, False), ("after a product", multiply, False)]
    situations += [("late", nothing, True), ("late, after a sort", sort, True)]
    if COMM.rank == 0:
        names = ("MPI", "planned", "voted", "Python", "planned core", "voted core")
        print(f"{verb:29}", *(f"{name:>12}" for name in names))
    for nbytes in SIZES:
        ways = calls(verb, nbytes)
        for name, before, late in situations:
            figures = situation(ways, before, late, max(rounds * (64 << 10) // max(nbytes, 64 << 10), 6), cores)
            if COMM.rank == 0:
                print(f"{nbytes >> 10:6} KiB {name:18}", *(f"{value:12.0f}" for value in figures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60, sys.argv[2] if len(sys.argv) > 2 else "allreduce")
