"""The command line of collective_benchmark.py. Knows no MPI, so that a bad line is refused before anything starts."""

import argparse
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import byte_sizes

VERBS = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "send")
VERB_SIZES = (1 << 10, 64 << 10, 1 << 20, 32 << 20)
DEFAULT_SIZES = tuple(4**power for power in range(3, 15))  # 64 B to 256 MiB


@dataclass(frozen=True)
class Arguments:
    sizes: list[int]  # bytes, ascending
    rounds: int
    gradients: bool
    verbs: list[str]  # empty: the comparison of allreduce alone
    json: Path | None
    plot: Path | None


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def size(text: str) -> int:
    try:
        return byte_sizes.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be bytes such as 64, 4KiB or 16MiB, got {text!r}") from None


def new_file(text: str) -> Path:
    """A path that can be written later: a measurement of minutes must not end at a missing folder."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that exists, got {text!r}")
    return path


def picture(text: str) -> Path:
    if Path(text).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must end in .png, got {text!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be drawn: matplotlib is not installed. It comes with Sirtaki's extra `bench`: "
            "pip install 'sirtaki[bench]', or pip install matplotlib"
        )
    return new_file(text)


def parse(description: str, argv: list[str] | None = None) -> Arguments:
    """What the command line asks for; SystemExit with a message that shows the value, if that cannot be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sizes", type=size, nargs="*", help="e.g. 64 1KiB 16MiB")
    parser.add_argument("--rounds", type=at_least_one, default=50, help="turns of each way up to 1 MiB; fewer above")
    parser.add_argument("--no-gradients", action="store_true", help="leave out the 161 gradients of ResNet-50")
    parser.add_argument("--verb", choices=("all", *VERBS), help="compare one verb or all, also in batches")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="draw time and bus bandwidth over size")
    given = parser.parse_args(argv)
    if given.plot and given.verb:
        parser.error(f"--plot {given.plot} draws the comparison of allreduce, which --verb {given.verb} leaves out")
    if given.sizes is None:
        given.sizes = VERB_SIZES if given.verb else DEFAULT_SIZES
    if given.plot and not given.sizes:
        parser.error(f"--plot {given.plot} has nothing to draw: --sizes names no size")
    verbs = list(VERBS) if given.verb == "all" else [given.verb] if given.verb else []
    gradients = not given.no_gradients and not verbs
    return Arguments(sorted(set(given.sizes)), given.rounds, gradients, verbs, given.json, given.plot)
