"""Flags that tune the core: each sets one SIRTAKI_* variable for the ranks. Also flags of missing features."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sirtaki.timeline.steps import parse_steps

_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class _Number:
    """A flag with a number of at least `least`, and the variable that it sets (multiplied by `unit`)."""

    flag: str
    variable: str
    help: str
    type: Callable[[str], Any] = int
    unit: int = 1
    least: int = 0

    @property
    def dest(self) -> str:
        return _dest(self.flag)


_NUMBERS = (
    _Number("--fusion-threshold-mb", "FUSION_THRESHOLD", "size of fused batches, in MiB; 0: no fusion", int, 1 << 20),
    _Number(
        "--cycle-time-ms",
        "CYCLE_TIME",
        "no effect: work starts at once, without cycles",
        float,
    ),
    _Number("--cache-capacity", "CACHE_CAPACITY", "entries of the response cache; 0: none"),
    _Number("--stall-check-warning-time-seconds", "STALL_CHECK_TIME_SECONDS", "until late ranks are named"),
    _Number(
        "--stall-check-shutdown-time-seconds",
        "STALL_SHUTDOWN_TIME_SECONDS",
        "until the job ends; 0: never",
    ),
    _Number(
        "--gloo-timeout-seconds",
        "GLOO_TIMEOUT_SECONDS",
        "without MPI: silence of a host after which its ranks count as lost (30)",
        least=1,
    ),
    _Number("--thread-affinity", "THREAD_AFFINITY", "core for the engine's thread"),
    _Number(
        "--timeline-megabytes",
        "TIMELINE_MEGABYTES",
        "limit of the timeline's file; the newest events stay (64)",
        least=1,
    ),
    _Number("--autotune-warmup-samples", "AUTOTUNE_WARMUP_SAMPLES", "steps before each measurement of the tuner"),
    _Number("--autotune-steps-per-sample", "AUTOTUNE_STEPS_PER_SAMPLE", "steps of each measurement", least=1),
    _Number(
        "--autotune-bayes-opt-max-samples", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "exported; the tuner has no such search"
    ),
    _Number("--autotune-gaussian-process-noise", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "exported, likewise", float),
)
# A flag with a text, and the variable that it sets.
_TEXTS = (
    ("--timeline-filename", "TIMELINE", "FILE", "write a timeline of all ranks (docs/timeline.md)"),
    ("--timeline-steps", "TIMELINE_STEPS", "A:B", "only the steps from A to B - 1, counted from 0"),
    ("--autotune-log-file", "AUTOTUNE_LOG", "FILE", "what the tuner measured, as CSV"),
)
# Two flags for one variable: their names, the variable, and its value for each flag.
_PAIRS = (
    ("stall_check", ("--stall-check", "--no-stall-check"), "STALL_CHECK_DISABLE", ("0", "1")),
    (
        "hierarchical_allreduce",
        ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        "HIERARCHICAL_ALLREDUCE",
        ("1", "0"),
    ),
    (
        "mpi_threads_disable",
        ("--mpi-threads-disable", "--no-mpi-threads-disable"),
        "MPI_THREADS_DISABLE",
        ("1", "0"),
    ),
    (
        "timeline_mark_cycles",
        ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
        "TIMELINE_MARK_CYCLES",
        ("1", "0"),
    ),
    ("autotune", ("--autotune", "--no-autotune"), "AUTOTUNE", ("1", "0")),
)
# Missing features: dest, flags, type (None: a switch), and the name of the feature.
_MISSING = (
    ("hierarchical_allgather", ("--hierarchical-allgather",), None, "hierarchical allgather"),
    ("torus_allreduce", ("--torus-allreduce",), None, "torus allreduce"),
    ("num_nccl_streams", ("--num-nccl-streams",), int, "NCCL"),
)
# Declared beside the flags that they exclude.
_MISSING_ELSEWHERE = (
    ("use_jsrun", ("--jsrun",), "jsrun"),
    ("tcp_flag", ("--tcp",), "Spectrum MPI"),
)


def _dest(flag: str) -> str:
    return flag[2:].replace("-", "_")


def add_flags(parser: argparse.ArgumentParser, add: Callable[..., None]) -> None:
    """Adds all flags of this module, by calling `add(group, ...)` for each."""
    group = parser.add_argument_group("tuning (each sets a SIRTAKI_* variable for the ranks)")
    for number in _NUMBERS:
        metavar = "F" if number.type is float else "N"
        add(group, number.flag, type=number.type, metavar=metavar, help=number.help)
    for flag, variable, metavar, words in _TEXTS:
        add(group, flag, metavar=metavar, help=f"{words}: sets SIRTAKI_{variable}")
    for dest, (first, second), variable, _ in _PAIRS:
        pair = group.add_mutually_exclusive_group()
        add(pair, first, dest=dest, action="store_true", default=None, help=f"or {second}: sets SIRTAKI_{variable}")
        add(pair, second, dest=dest, action="store_false", default=None, help=argparse.SUPPRESS)
    _add_log(group, add)
    missing = parser.add_argument_group("not available in this version (refused by name)")
    for dest, flags, kind, what in _MISSING:
        _add_missing(missing, add, dest, flags, kind, what)


def _add_log(group: Any, add: Callable[..., None]) -> None:
    add(group, "--log-level", type=str.upper, choices=_LEVELS, help="SIRTAKI_LOG_LEVEL")
    stamps = group.add_mutually_exclusive_group()
    for flag, hidden in (("--log-with-timestamp", False), ("--no-log-hide-timestamp", True)):
        words = argparse.SUPPRESS if hidden else "show the time in the core's messages"
        add(stamps, flag, dest="log_with_timestamp", action="store_true", default=None, help=words)
    for flag, hidden in (("--log-without-timestamp", False), ("--log-hide-timestamp", True)):
        words = argparse.SUPPRESS if hidden else "do not show it"
        add(stamps, flag, dest="log_with_timestamp", action="store_false", default=None, help=words)
    add(
        stamps,
        *("-prefix-timestamp", "--prefix-output-with-timestamp"),
        action="store_true",
        dest="prefix_output_with_timestamp",
        help="show the time before each line of output",
    )


def _add_missing(group: Any, add: Callable[..., None], dest: str, flags: tuple[str, ...], kind: Any, what: str) -> None:
    if kind is None:
        pair = group.add_mutually_exclusive_group()
        add(pair, *flags, dest=dest, action="store_true", default=None, help=what)
        add(pair, "--no-" + flags[0][2:], dest=dest, action="store_false", default=None, help=argparse.SUPPRESS)
    else:
        metavar = {int: "N", float: "F", str: "FILE"}[kind]
        add(group, *flags, dest=dest, type=kind, metavar=metavar, help=what)


def refuse_missing(options: argparse.Namespace) -> None:
    """ValueError with each flag whose feature does not exist in this version."""
    wanted = [(dest, flags, what) for dest, flags, _, what in _MISSING] + list(_MISSING_ELSEWHERE)
    values = {dest: getattr(options, dest) for dest, _, _ in wanted}
    asked = [f"{flags[0]} ({what})" for dest, flags, what in wanted if not _off(values[dest])]
    if asked:
        raise ValueError(f"not available in this version: {', '.join(asked)}")


def _off(value: Any) -> bool:
    return value is None or value is False  # 0 counts as given


def check(options: argparse.Namespace) -> None:
    """ValueError for a number out of its range, with the value."""
    for number in _NUMBERS:
        value = getattr(options, number.dest)
        if value is not None and not number.least <= value < float("inf"):
            raise ValueError(f"{number.flag} {value}: must be {number.least} or more")
    for flag, *_ in _TEXTS:
        if getattr(options, _dest(flag)) == "":
            raise ValueError(f"{flag} '': must not be empty")
    if options.timeline_steps is not None:
        parse_steps(options.timeline_steps)


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The variables that the flags set for the ranks."""
    result = {}
    for number in _NUMBERS:
        value = getattr(options, number.dest)
        if value is not None:
            result["SIRTAKI_" + number.variable] = str(value * number.unit)
    for flag, variable, _, _ in _TEXTS:
        value = getattr(options, _dest(flag))
        if value is not None:
            result["SIRTAKI_" + variable] = value
    for dest, _, variable, (yes, no) in _PAIRS:
        value = getattr(options, dest)
        if value is not None:
            result["SIRTAKI_" + variable] = yes if value else no
    if options.log_level:
        result["SIRTAKI_LOG_LEVEL"] = options.log_level.lower()
    if options.log_with_timestamp is not None:
        result["SIRTAKI_LOG_HIDE_TIME"] = "0" if options.log_with_timestamp else "1"
    if options.start_timeout is not None:
        result["SIRTAKI_START_TIMEOUT"] = str(options.start_timeout)
    if options.nics:
        result["NCCL_SOCKET_IFNAME"] = ",".join(options.nics)
    return result
