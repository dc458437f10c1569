"""Puts timelines and traces of other profilers into one trace, on one clock.

Times of every input are first those since 1970; the output counts from the earliest input's beginning. What is read:
timelines of Sirtaki, traces of torch.profiler, and profiles of TensorFlow (*.xplane.pb).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sirtaki.timeline.chrome_trace import HEADER, parse
from sirtaki.timeline.shared_file import Event

_SKEW = 60 * 10**9  # ns by which the clocks of a job's hosts may differ
_GZIP = b"\x1f\x8b"
_XPLANE = ".xplane.pb"
_HOW = "expected a timeline of Sirtaki (not *.pftrace), a trace of torch.profiler, or TensorFlow's *.xplane.pb"


@dataclass
class Input:
    """zero: ns since 1970 at which its times begin. events: of Chrome's trace format. about: what else it says."""

    zero: int
    events: list[Event]
    is_timeline: bool = False
    about: dict[str, Any] = field(default_factory=dict)


def merge(paths: Sequence[str], output: str) -> None:
    """Writes the merged trace, compressed if its name ends in .gz. ValueError for an unknown format; OSError."""
    inputs = _on_one_clock([read(path) for path in paths])
    zero = min(entry.zero for entry in inputs)
    events: list[Event] = []
    taken: set[Any] = set()
    for entry in inputs:
        shift = (entry.zero - zero) / 1e3
        own = _free_processes(entry, taken)
        taken |= set(own.values())
        events += [_moved(event, shift, own) for event in entry.events]
    about: dict[str, Any] = {}
    for entry in inputs:
        about = entry.about | about
    data = json.dumps({**about, "displayTimeUnit": "ms", "baseTimeNanoseconds": zero, "traceEvents": events}).encode()
    with open(output, "wb") as file:
        file.write(gzip.compress(data) if output.endswith(".gz") else data)


def _on_one_clock(inputs: list[Input]) -> list[Input]:
    """Timelines of one job count on rank 0's clock, which is more exact than what their hosts take for the time."""
    timelines = [entry for entry in inputs if entry.is_timeline]
    for entry in timelines[1:]:
        first = timelines[0]
        zero = first.zero + _monotonic(entry) - _monotonic(first)
        if abs(zero - entry.zero) < _SKEW:
            entry.zero = zero
    return inputs


def _monotonic(timeline: Input) -> int:
    return int(timeline.events[0]["args"]["monotonic_ns"])


def read(path: str) -> Input:
    """ValueError with the path for an unknown format; OSError."""
    if path.endswith(_XPLANE):
        return _of_tensorflow(path)
    with open(path, "rb") as file:
        data = file.read()
    try:
        content = parse(gzip.decompress(data) if data.startswith(_GZIP) else data)
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no JSON: {_HOW} ({error})") from None
    try:
        return _of_events(content)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f"{path} does not say when its times begin: {_HOW}") from None


def _of_events(content: Any) -> Input:
    """AttributeError, LookupError, TypeError or ValueError for anything but a timeline or a trace of torch.profiler."""
    if isinstance(content, list) and content[0]["name"] == HEADER:
        found = Input(int(content[0]["args"]["start_time_since_epoch_in_nanos"]), content, is_timeline=True)
        _monotonic(found)
        return found
    about = {name: value for name, value in content.items() if name != "traceEvents"}
    return Input(int(about["baseTimeNanoseconds"]), content["traceEvents"], about=about)


def _free_processes(entry: Input, taken: set[Any]) -> dict[Any, Any]:
    """A number for each process of the input that no other input uses. Those of torch.profiler stay, if possible."""
    processes = list(dict.fromkeys(event.get("pid") for event in entry.events))
    free: dict[Any, Any] = {}
    for process in processes:
        number = process
        while number in taken or number in free.values():
            number = number + 1_000_000 if isinstance(number, int) else f"{number}'"
        free[process] = number
    return free


def _moved(event: Event, shift: float, processes: dict[Any, Any]) -> Event:
    moved = {**event, "pid": processes[event.get("pid")]}
    if "ts" in event and event["ph"] != "M":
        moved["ts"] = round(event["ts"] + shift, 3)
    return moved


def _of_tensorflow(path: str) -> Input:
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise ValueError(f"{path} can be read where TensorFlow is installed: {error}") from None
    with open(path, "rb") as file:
        space = xplane_pb2.XSpace.FromString(file.read())
    zero, events = 0, []
    for number, plane in enumerate(space.planes):
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                zero = stat.uint64_value or stat.int64_value
        events += _of_plane(number, plane)
    if not zero:
        raise ValueError(f"{path} does not say when its times begin: it has no profile_start_time")
    return Input(zero, events)


def _of_plane(number: int, plane: Any) -> list[Event]:
    """A plane is a device or the host; a line is a thread or a stream of it."""
    events: list[Event] = []
    if plane.lines:
        events.append({"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": plane.name}})
    for row, line in enumerate(plane.lines):
        about = {"name": line.display_name or line.name}
        events.append({"name": "thread_name", "ph": "M", "pid": number, "tid": row, "args": about})
        for entry in line.events:
            what = plane.event_metadata[entry.metadata_id]
            events.append(
                {
                    "name": what.display_name or what.name,
                    "ph": "X",
                    "pid": number,
                    "tid": row,
                    "ts": (line.timestamp_ns + entry.offset_ps / 1e3) / 1e3,
                    "dur": entry.duration_ps / 1e6,
                }
            )
    return events
