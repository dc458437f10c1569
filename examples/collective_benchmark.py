"""The time of an allreduce through raw MPI, torch.distributed's gloo, Horovod (if installed) and Sirtaki, in one run.

    sirtakirun -np 2 python examples/collective_benchmark.py --json figures.json --plot figures.png
    sirtakirun -np 2 python examples/collective_benchmark.py --verb all

The second line compares every verb, call by call and in batches of small asynchronous calls.

The ways take turns, in another order each round; the first operation of a turn does not count, since a way may have
to find together again after the others. Before each operation the tensors are rewritten, as a backward pass rewrites
gradients, and the ranks meet at a barrier. An operation lasts from when the last rank has come until the last one has
left: the ranks' way out of the barrier, long where they share cores, is no part of it. Several hosts have no common
clock; there it is the time of the slowest rank. Results are checked. A copy of as many bytes within each rank, all at
the same time, shows what memory allows.

Sirtaki's data plane is settled when it starts: a second run with SIRTAKI_CPU_OPERATIONS=mpi shows the other one, to be
compared through each run's own ratios to MPI.
"""

import contextlib
import io
import random
import time
from collections.abc import Callable

import collective_arguments
import collective_report as report
import collective_verbs
import collective_ways as ways
import resnet
import torch
from collective_peers import Peers
from mpi4py import MPI

COMM = MPI.COMM_WORLD
Say = Callable[[list[str]], None]
TIMED = 2  # operations of a turn that count, after one that does not


def parse(argv: list[str] | None) -> collective_arguments.Arguments:
    """Every rank reads the same line; the first one alone complains."""
    with contextlib.ExitStack() as stack:
        if COMM.rank != 0:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        return collective_arguments.parse(__doc__.split("\n")[0], argv)


def rounds_for(nbytes: int, rounds: int) -> int:
    """The same on all ranks; a size above 1 MiB gets fewer, down to five."""
    return max(min(rounds, 5), min(rounds, rounds * (1 << 20) // nbytes))


def check(name: str, way: ways.Way, results: list[torch.Tensor], value: int) -> None:
    """Ends the job if a result is wrong; looks at some elements of each tensor."""
    for tensor in results:
        for index, expected in way.due(value, tensor):
            if (got := tensor.view(-1)[index].item()) != expected:
                raise RuntimeError(f"{name} gave {got} where {expected} was due")


class Turns:
    """Lets ways take turns. shared: the same random numbers on all ranks; own: others on each."""

    def __init__(self, one_clock: bool) -> None:
        self.one_clock = one_clock
        self.shared, self.own = random.Random(1), random.Random(f"rank {COMM.rank}")
        self.operations = 0

    def operate(self, name: str, way: ways.Way) -> tuple[float, float]:
        """When one operation started and ended on this rank; each has other values than the one before."""
        self.operations += 1
        value = 1 + self.operations % 100
        for tensor in way.given:
            tensor.fill_(value + COMM.rank)
        count = len(way.given)
        orders = [source.sample(range(count), count) for source in (self.shared, self.own)]
        COMM.Barrier()
        start = time.monotonic()  # the same clock in all processes of a host
        made = way.call(orders[way.any_order])
        end = time.monotonic()
        results = way.results if made is None else made
        check(name, way, [results] if isinstance(results, torch.Tensor) else results, value)
        return start, end

    def take(self, runs: dict[str, ways.Way], rounds: int) -> dict[str, list[float]]:
        """Seconds of each way's operations. One more round comes first and does not count."""
        stamps: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name in self.shared.sample(list(runs), len(runs)):
                own = [self.operate(name, runs[name]) for _ in range(1 + TIMED)]
                stamps[name] += own[1:] if turn else []
        by_rank = {name: zip(*COMM.allgather(own), strict=True) for name, own in stamps.items()}
        return {
            name: [report.duration(one, self.one_clock) for one in operations] for name, operations in by_rank.items()
        }


def measure_size(turns: Turns, peers: Peers, nbytes: int, rounds: int) -> report.Figures:
    buffers = ways.Buffers([[nbytes // 4]])
    runs = {name: make(buffers) for name, make in ways.of_one_tensor(peers.horovod).items()}
    seconds = turns.take(runs, rounds_for(nbytes, rounds))
    return {"bytes": nbytes, "ways": report.summarise(seconds, nbytes, COMM.size)}


def measure_gradients(turns: Turns, peers: Peers, rounds: int) -> report.Figures:
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in resnet.make("resnet50").parameters()]
    elements = sum(shape.numel() for shape in shapes)
    scattered, flat = ways.Buffers(shapes), ways.Buffers([[elements]])
    runs = {name: make(scattered) for name, make in ways.of_many_tensors(peers.horovod).items()}
    runs |= {f"{name}, one flat buffer": make(flat) for name, make in ways.of_one_tensor(peers.horovod).items()}
    seconds = turns.take(runs, rounds_for(4 * elements, rounds))
    figures = report.summarise(seconds, 4 * elements, COMM.size)
    return {"tensors": len(shapes), "elements": elements, "ways": figures}


def measure_verbs(turns: Turns, verbs: list[str], sizes: list[int], rounds: int) -> list[report.Figures]:
    """A row for each verb and size, and one for each batch of small calls."""
    rows = []
    for verb in verbs:
        for nbytes in sizes:
            made = collective_verbs.MAKERS[verb](nbytes)
            row = {"verb": verb, "bytes": nbytes, "calls": 1}
            seconds = turns.take(made.blocking_ways(), rounds_for(nbytes, rounds))
            rows.append({**row, "ways": report.summarise(seconds, nbytes, COMM.size)})
            if nbytes <= collective_verbs.BATCH_BYTES:
                seconds = turns.take(made.batch_ways(), max(rounds // 5, 1))
                ways_of_batch = report.summarise(seconds, nbytes * collective_verbs.BATCH, COMM.size)
                rows.append({**row, "calls": collective_verbs.BATCH, "ways": ways_of_batch})
    return rows


def compare_verbs(turns: Turns, arguments: collective_arguments.Arguments, say: Say) -> report.Figures:
    rows = measure_verbs(turns, arguments.verbs, arguments.sizes, arguments.rounds)
    say(report.verbs_table(rows))
    return {"verbs": rows}


def compare_allreduces(
    turns: Turns, peers: Peers, arguments: collective_arguments.Arguments, say: Say
) -> report.Figures:
    rows = [measure_size(turns, peers, nbytes, arguments.rounds) for nbytes in arguments.sizes]
    if rows:
        say(report.sizes_table(rows))
    gradients = measure_gradients(turns, peers, arguments.rounds) if arguments.gradients else None
    if gradients:
        say(report.gradients_table(gradients))
    if COMM.rank == 0 and arguments.plot:
        report.draw(arguments.plot, peers.facts, rows)
    return {"allreduce": rows, "gradients": gradients}


def main(argv: list[str] | None = None) -> None:
    arguments = parse(argv)
    peers = Peers(COMM)
    turns = Turns(one_clock=len(peers.facts["hosts"]) == 1)

    def say(lines: list[str]) -> None:
        if COMM.rank == 0:
            print(*lines, sep="\n", flush=True)

    say(peers.header())
    figures = (
        compare_verbs(turns, arguments, say) if arguments.verbs else compare_allreduces(turns, peers, arguments, say)
    )
    if COMM.rank == 0 and arguments.json:
        report.write_json(arguments.json, peers.facts, **figures)
    peers.stop()


if __name__ == "__main__":
    main()
