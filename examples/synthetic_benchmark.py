"""Training speed on random images, with the flags and the output lines of Horovod's synthetic benchmarks.

    sirtakirun -np 2 python examples/synthetic_benchmark.py --framework torch

The speed of one process with and without Sirtaki, and the efficiency of several against one, in a single run:

    sirtakirun -np 2 python examples/synthetic_benchmark.py --framework torch --compare

A framework takes part by a module benchmark_<framework>.py beside this file with a class `Benchmark(arguments)`:

    hvd                       the adapter, initialised, e.g. sirtaki.torch; None with --no-sirtaki
    device                    "CPU" or "GPU"
    threads                   the compute threads of this process
    versions                  {"torch": "2.13.0"}
    count_ranks()             a sum of ones over all ranks
    dtype, wire_dtype         of the model, and of gradients while they travel
    trainer(distributed)      -> a function that trains one batch and returns the seconds in which it only waited
                              for other ranks, or NaN where it cannot tell
    exchange()                reduces the gradients of one step and does nothing else
    adapter_seconds()         of the host's time, what the adapter takes in a step; may be missing
    finish()                  returns when the device has done all that was asked of it
    peers()                   with --compare ddp: {name: a function that trains one batch}, in other ways; with
                              --capture among them NO_COMMUNICATION, for what is not captured
"""

import argparse
import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from synthetic_report import Report, unit_of
from synthetic_world import World
from tqdm import tqdm


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    frameworks = [file.stem[len("benchmark_") :] for file in Path(__file__).parent.glob("benchmark_*.py")]
    add("--framework", choices=sorted(frameworks), default="torch", help="what computes")
    add("--fp16-allreduce", action="store_true", default=False, help="gradients travel as float16")
    add("--bf16-allreduce", action="store_true", default=False, help="gradients travel as bfloat16")
    add("--model", default="resnet50", help="bert-large or a model of torchvision; without it vgg16 or a resnet")
    add("--batch-size", type=count, default=32, help="images, or sequences, of one batch on one rank")
    add("--image-size", type=count, default=224, help="height and width of an image")
    add("--sequence-length", type=count, default=128, help="tokens of a sequence")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="autocast, if a shorter one")
    add("--channels-last", action="store_true", default=False, help="images and weights with channels last")
    add("--capture", action="store_true", default=False, help="each step as one CUDA graph (not DDP's)")
    add("--num-warmup-batches", type=count, default=10, help="batches that are not timed")
    add("--num-batches-per-iter", type=count, default=10, help="batches of one timed iteration")
    add("--num-iters", type=count, default=10, help="timed iterations")
    add("--no-cuda", action="store_true", default=False, help="the CPU even where there is a GPU")
    add("--use-adasum", action="store_true", default=False, help="combine gradients by Adasum, not by their average")
    add("--threads", type=count, help="compute threads of one rank; as the launcher set them if not given")
    add(
        "--no-sirtaki",
        action="store_true",
        default=False,
        help="each rank trains for itself, without Sirtaki",
    )
    add(
        "--compare",
        nargs="?",
        const="alone",
        choices=("alone", "ddp"),
        help="iterations with and without Sirtaki in turn, as ratios; ddp: also PyTorch's DDP, plain and tuned, and "
        "the most that eager training can reach",
    )
    add("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    arguments = parser.parse_args(argv)
    if arguments.fp16_allreduce and arguments.bf16_allreduce:
        parser.error("--fp16-allreduce and --bf16-allreduce exclude each other")
    if arguments.no_sirtaki and arguments.compare:
        parser.error("--compare needs Sirtaki; leave out --no-sirtaki")
    if arguments.framework != "torch":
        for flag, given in (
            ("--dtype", arguments.dtype != "float32"),
            ("--channels-last", arguments.channels_last),
            ("--capture", arguments.capture),
            ("--compare ddp", arguments.compare == "ddp"),
        ):
            if given:
                parser.error(f"{flag} works with --framework torch only, got {arguments.framework!r}")
    if arguments.model == "bert-large" and arguments.channels_last:
        parser.error("--channels-last is for images, which --model bert-large does not take")
    return arguments


@dataclass
class Iteration:
    """One timed iteration of one rank."""

    images: int
    seconds: float
    waited: float  # seconds of it that only waited for other ranks
    host: float = math.nan  # seconds until the host had asked for everything

    @property
    def speed(self) -> float:
        return self.images / self.seconds


class Run:
    """The measuring of one process: what is timed, and in which order."""

    def __init__(self, arguments: argparse.Namespace, benchmark, world: World) -> None:
        self.arguments, self.benchmark, self.world = arguments, benchmark, world
        self.with_sirtaki: list[Iteration] = []
        self.without: list[Iteration] = []
        self.alone: list[Iteration] = []
        self.by_peer: dict[str, list[Iteration]] = {}
        self.exchanges: list[float] = []
        self.adapter_seconds: float | None = None
        self.joules: list[float] = []  # of each iteration with Sirtaki, where the system lets this rank read them

    def iteration(self, train: Callable[[], float]) -> Iteration:
        batches = self.arguments.num_batches_per_iter
        start = time.perf_counter()
        waited = sum(train() for _ in range(batches))
        host = time.perf_counter() - start
        self.benchmark.finish()
        return Iteration(batches * self.arguments.batch_size, time.perf_counter() - start, waited, host)

    def measure(self) -> None:
        """Warms up, then times every iteration; with --compare the ways take turns."""
        train = self.benchmark.trainer(distributed=not self.arguments.no_sirtaki)
        plain = self.benchmark.trainer(distributed=False) if self.arguments.compare else None
        self.world.say("Running warmup...")
        peers = self.benchmark.peers() if self.arguments.compare == "ddp" else {}
        for one in filter(None, (train, plain, *peers.values())):
            for _ in range(self.arguments.num_warmup_batches):
                one()
        self.benchmark.finish()
        self.world.say("Running benchmark...")
        for index in tqdm(range(self.arguments.num_iters), disable=None if self.world.leads else True, leave=False):
            before = self.energy()
            self.with_sirtaki.append(self.iteration(train))
            self.joules += [after - before for after in [self.energy()] if after is not None and before is not None]
            device, speed = self.benchmark.device, self.with_sirtaki[-1].speed
            self.world.say(f"Iter #{index}: {speed:.1f} {unit_of(self.arguments.model)}/sec per {device}")
            for name, peer in peers.items():
                self.benchmark.hvd.barrier()
                self.by_peer.setdefault(name, []).append(self.iteration(peer))
            if plain:
                self.turn_without(plain)
        self.measure_exchange()

    def energy(self) -> float | None:
        """Joules so far, None if they cannot be read."""
        return self.benchmark.hvd.step_report().get("energy", {}).get("joules") if self.benchmark.hvd else None

    def turn_without(self, plain: Callable[[], float]) -> None:
        """All ranks at once without Sirtaki, then rank 0 alone while the others wait."""
        hvd = self.benchmark.hvd
        hvd.barrier()
        self.without.append(self.iteration(plain))
        hvd.barrier()
        if hvd.size() > 1:
            if hvd.rank() == 0:
                self.alone.append(self.iteration(plain))
            hvd.barrier()

    def measure_exchange(self, rounds: int = 5) -> None:
        if self.benchmark.hvd is None or self.benchmark.hvd.size() == 1:
            return
        for _ in range(rounds + 1):  # the first one agrees on what is exchanged, and is not counted
            self.benchmark.hvd.barrier()
            start = time.perf_counter()
            self.benchmark.exchange()
            self.benchmark.finish()
            self.exchanges.append(time.perf_counter() - start)
        del self.exchanges[0]
        if hasattr(self.benchmark, "adapter_seconds") and not self.arguments.use_adasum:
            self.adapter_seconds = self.benchmark.adapter_seconds()


def main(argv: list[str] | None = None) -> None:
    arguments = parse(argv)
    benchmark = importlib.import_module(f"benchmark_{arguments.framework}").Benchmark(arguments)
    world = World(benchmark)
    report = Report(arguments, benchmark, world)
    report.print_header()
    run = Run(arguments, benchmark, world)
    run.measure()
    report.collect(run)
    report.print_result()
    if arguments.json and world.leads:
        arguments.json.write_text(report.to_json())


if __name__ == "__main__":
    main()
