"""The options of elastic jobs, by Horovod's names."""

import argparse
import os
from collections.abc import Callable
from typing import Any

TIMEOUT_VARIABLES = ("SIRTAKI_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT")
_TIMEOUT = 600
_COOLDOWN = (1, 60)  # seconds
_LONGEST_COOLDOWN = 3600  # seconds, as in Horovod
_ONLY_ELASTIC = {
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}


def add_flags(parser: argparse.ArgumentParser, add: Callable[..., None], positive: Any, number: Any) -> None:
    """positive, number: the types of whole numbers from 1, and from 0."""
    group = parser.add_argument_group("elastic jobs, which go on without a lost rank (docs/elastic.md)")
    words = "go on while there are so many ranks; makes the job elastic (default: -np)"
    add(group, "--min-np", "--min-num-proc", dest="min_num_proc", type=positive, metavar="N", help=words)
    words = "at most so many ranks; makes the job elastic (default: as many as there are slots)"
    add(group, "--max-np", "--max-num-proc", dest="max_num_proc", type=positive, metavar="N", help=words)
    words = "slots of a host that the discovery script prints without a number (default: 1)"
    add(group, "--slots-per-host", dest="slots", type=positive, metavar="N", help=words)
    words = f"seconds to wait for enough ranks ({TIMEOUT_VARIABLES[0]}, else {_TIMEOUT})"
    add(group, "--elastic-timeout", type=positive, metavar="S", help=words)
    words = "the job fails if its ranks change more often than this"
    add(group, "--reset-limit", type=number, metavar="N", help=words)
    words = f"seconds for which a slot rests after a failure, doubled up to MAX (default: {_COOLDOWN})"
    name = "--blacklist-cooldown-range"
    add(group, name, dest="cooldown_range", type=int, nargs=2, metavar=("MIN", "MAX"), help=words)


def is_elastic(options: argparse.Namespace) -> bool:
    given = (options.min_num_proc, options.max_num_proc, options.host_discovery_script)
    return any(value is not None for value in given)


def check(options: argparse.Namespace) -> None:
    """ValueError for options that contradict each other."""
    if not is_elastic(options):
        for name, flag in _ONLY_ELASTIC.items():
            if (value := getattr(options, name)) is not None:
                shown = " ".join(map(str, value)) if isinstance(value, list) else value
                text = "is for elastic jobs: give --min-np, --max-np or --host-discovery-script, too"
                raise ValueError(f"{flag} {shown} {text}")
        return
    if options.slots is not None and options.host_discovery_script is None:
        raise ValueError(
            f"--slots-per-host {options.slots} is for hosts that a --host-discovery-script prints, and there is none: "
            "give the slots of each host in -H or --hostfile"
        )
    if options.use_mpi:
        raise ValueError("--mpi: an elastic job cannot use MPI, which does not survive the loss of a rank")
    if options.launcher != "auto":
        raise ValueError(f"--launcher {options.launcher}: sirtakirun itself starts the ranks of an elastic job")
    if options.host_discovery_script is not None and not options.host_discovery_script.strip():
        raise ValueError("--host-discovery-script '': expected a command that prints hosts")
    least, most = options.min_num_proc, options.max_num_proc
    if options.num_proc is None:
        options.num_proc = least
    count = options.num_proc
    if count is not None and least is not None and least > count:
        raise ValueError(f"--min-np {least} is more than -np {count}")
    if count is not None and most is not None and most < count:
        raise ValueError(f"--max-np {most} is less than -np {count}")
    shortest, longest = options.cooldown_range or _COOLDOWN
    if not 1 <= shortest <= longest <= _LONGEST_COOLDOWN:
        raise ValueError(
            f"--blacklist-cooldown-range {shortest} {longest}: must be 1 <= MIN <= MAX <= {_LONGEST_COOLDOWN}"
        )


def timeout(options: argparse.Namespace) -> float:
    """Seconds to wait for enough ranks. ValueError."""
    if options.elastic_timeout is not None:
        return float(options.elastic_timeout)
    for name in TIMEOUT_VARIABLES:
        if text := os.environ.get(name):
            if not text.isdecimal() or int(text) < 1:
                raise ValueError(f"{name}={text!r} is not a positive number of seconds")
            return float(text)
    return float(_TIMEOUT)


def cooldown(options: argparse.Namespace) -> tuple[float, float]:
    shortest, longest = options.cooldown_range or _COOLDOWN
    return float(shortest), float(longest)
