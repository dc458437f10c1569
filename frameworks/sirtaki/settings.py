"""The settings that a rank's Python code reads from the environment: SIRTAKI_<name>, else HOROVOD_<name>.

The flags of sirtakirun set the same variables. The core's settings are in collectives/base/settings.cc, the variables
of the launcher's flags in launch/command_line/.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sirtaki.timeline.steps import parse_steps

DYNAMIC = "DYNAMIC"  # as a file's name: wait for start_timeline()
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_MEGABYTES = 64


def look_up(name: str) -> tuple[str, str]:
    """(the variable that is set, its value): SIRTAKI_<name>, else HOROVOD_<name>; ("", "") if neither is set."""
    for variable in (f"SIRTAKI_{name}", f"HOROVOD_{name}"):
        if value := os.environ.get(variable, "").strip():
            return variable, value
    return "", ""


def flag(name: str, default: bool = False) -> bool:
    """ValueError for anything but a truth value."""
    variable, value = look_up(name)
    if not variable:
        return default
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"{variable}={value!r}: expected 1 or 0")
    return value.lower() in _TRUE


def file_of_this_start(path: str) -> str:
    """The file's name, with the number of the restart before its suffix if the launcher has started the job anew."""
    restarts = number("RESTART_COUNT", 0, least=0)
    base, suffix = os.path.splitext(path)
    return f"{base}.restart{restarts}{suffix}" if path and restarts else path


def has_summary() -> bool:
    """Whether a job ends with a line about where its time went. ValueError."""
    return flag("SUMMARY", default=True)


def failure_folder() -> str:
    """SIRTAKI_FAILURE_RECORDS: where a failed job leaves its last records; "" for nowhere, also for 0."""
    value = look_up("FAILURE_RECORDS")[1]
    return "" if value.lower() in _FALSE else file_of_this_start(value)


def control() -> str:
    """SIRTAKI_CONTROL: by which means the ranks find and reach each other, "mpi" or "sockets"; "" if it is not set."""
    variable, value = look_up("CONTROL")
    if value.lower() not in ("", "mpi", "sockets"):
        raise ValueError(f"{variable}={value!r}: expected mpi or sockets")
    return value.lower()


def number(name: str, default: int, least: int = 1) -> int:
    variable, value = look_up(name)
    if not variable:
        return default
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"{variable}={value!r}: expected a whole number of at least {least}")
    return int(value)


@dataclass(frozen=True)
class TimelineSettings:
    """limit: bytes of the file. marks_ranges: with NVTX ranges."""

    path: str
    mark_cycles: bool
    steps: str
    limit: int
    marks_ranges: bool


def timeline() -> TimelineSettings:
    """What SIRTAKI_TIMELINE and the variables beside it ask for. ValueError. path: "" without a timeline."""
    _, path = look_up("TIMELINE")
    variable, steps = look_up("TIMELINE_STEPS")
    try:
        parse_steps(steps or "0:")
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
    limit = number("TIMELINE_MEGABYTES", _MEGABYTES) << 20
    marks_ranges = not flag("DISABLE_NVTX_RANGES")
    return TimelineSettings(path, flag("TIMELINE_MARK_CYCLES"), steps or "0:", limit, marks_ranges)


@dataclass(frozen=True)
class TunerSettings:
    """Equal on all ranks but for the log, which rank 0 writes. warmup, steps: of each sample."""

    on: bool
    log: str
    warmup: int
    steps: int

    def agreed(self) -> str:
        return f"SIRTAKI_AUTOTUNE={int(self.on)}" + (f" ({self.warmup} + {self.steps} steps)" if self.on else "")


def tuner() -> TunerSettings:
    """Raises ValueError."""
    return TunerSettings(
        flag("AUTOTUNE"),
        file_of_this_start(look_up("AUTOTUNE_LOG")[1]),
        number("AUTOTUNE_WARMUP_SAMPLES", 3, least=0),
        number("AUTOTUNE_STEPS_PER_SAMPLE", 10),
    )
