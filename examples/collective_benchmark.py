"""The time of an allreduce through raw MPI, torch.distributed's gloo and Sirtaki, side by side in one run.

    sirtakirun -np 2 python examples/collective_benchmark.py

Every way reduces a float32 buffer of its own in place. The ways take turns, in another order each round; before each
operation the buffer is rewritten, as a backward pass rewrites gradients, and the ranks meet at a barrier. The time of
an operation is that of its slowest rank; the table shows medians over the rounds. Results are checked.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import byte_sizes
import collective_ways as ways
import torch
from mpi4py import MPI

DEFAULT_SIZES = tuple(4**power for power in range(3, 14))  # 64 B to 64 MiB
COMM = MPI.COMM_WORLD


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=byte_sizes.parse, nargs="*", default=DEFAULT_SIZES, help="e.g. 64 1KiB 16MiB")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of a size up to 64 KiB; fewer above")
    parser.add_argument("--no-gradients", action="store_true", help="leave out the 161 gradients of ResNet-50")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    return parser.parse_args(argv)


def rounds_for(nbytes: int, rounds: int) -> int:
    """The same on all ranks; a size above 64 KiB gets fewer, down to nine."""
    return max(min(rounds, 9), min(rounds, rounds * (1 << 16) // max(nbytes, 1)))


def check(buffers: list[torch.Tensor], expected: float, way: str) -> None:
    """Ends all ranks if a sum is wrong; looks at the ends and the middle of each buffer."""
    for buffer in buffers:
        for index in (0, buffer.numel() // 2, -1):
            if (got := buffer.view(-1)[index].item()) != expected:
                raise SystemExit(f"rank {COMM.rank}: {way} gave {got} where {expected} was due")


def take_turns(runs: dict[str, ways.Call], buffers: dict[str, list[torch.Tensor]], rounds: int) -> dict[str, float]:
    """Median seconds of each run, over rounds, of the slowest rank. Two more rounds come first and do not count."""
    shuffled = random.Random(1)  # the same order of ways on all ranks
    expected = float(sum(range(1, COMM.size + 1)))
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(rounds + 2):
        for way in shuffled.sample(list(runs), len(runs)):
            for buffer in buffers[way]:
                buffer.fill_(COMM.rank + 1)
            COMM.Barrier()
            start = time.perf_counter()
            runs[way]()
            seconds[way].append(time.perf_counter() - start)
            check(buffers[way], expected, way)
    times = {way: COMM.allgather(own[2:]) for way, own in seconds.items()}
    return {way: statistics.median(map(max, zip(*by_rank, strict=True))) for way, by_rank in times.items()}


def measure_size(nbytes: int, rounds: int) -> dict[str, float]:
    buffers = {way: [torch.empty(nbytes // 4)] for way in ways.SYNCHRONOUS}
    runs = {way: make(buffers[way][0]) for way, make in ways.SYNCHRONOUS.items()}
    return take_turns(runs, buffers, rounds_for(nbytes, rounds))


def measure_gradients(rounds: int) -> dict[str, float]:
    shapes = ways.resnet50_shapes()
    flat = sum(shape.numel() for shape in shapes)
    buffers, runs = {}, {}
    for way, (make, is_flat) in ways.GRADIENTS.items():
        buffers[way] = [torch.empty(flat)] if is_flat else [torch.empty(shape) for shape in shapes]
        runs[way] = make(buffers[way])
    return take_turns(runs, buffers, rounds_for(4 * flat, rounds))


def print_sizes(table: dict[int, dict[str, float]]) -> None:
    titles = ("", "MPI", "gloo", "Sirtaki", "Sirtaki-MPI", "Sirtaki/MPI", "gloo/Sirtaki")
    print("\nSynchronous allreduce, microseconds")
    print("".join(f"{title:>13}" for title in titles))
    for nbytes, row in table.items():
        mpi, gloo, ours = (row[way] * 1e6 for way in ("mpi", "gloo", "sirtaki"))
        times = "".join(f"{value:13.1f}" for value in (mpi, gloo, ours, ours - mpi))
        print(f"{byte_sizes.show(nbytes):>13}{times}{ours / mpi:13.2f}{gloo / ours:13.2f}")


def print_gradients(row: dict[str, float]) -> None:
    print("\nThe 161 gradients of ResNet-50 (25,557,032 float32); one flat buffer is taken as already packed")
    print(f"{'':>34}{'milliseconds':>14}{'to Sirtaki, asynchronous':>26}")
    for way, seconds in row.items():
        print(f"{way:>34}{seconds * 1e3:14.1f}{seconds / row[ways.OURS]:26.2f}")


def main(argv: list[str] | None = None) -> None:
    arguments = parse(argv)
    facts = ways.start(COMM)
    if COMM.rank == 0:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    table = {nbytes: measure_size(nbytes, arguments.rounds) for nbytes in arguments.sizes}
    gradients = {} if arguments.no_gradients else measure_gradients(arguments.rounds)
    if COMM.rank == 0:
        if table:
            print_sizes(table)
        if gradients:
            print_gradients(gradients)
        if arguments.json:
            result = {"facts": facts, "seconds_by_bytes": table, "gradients_seconds": gradients}
            arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    ways.stop()


if __name__ == "__main__":
    main()
