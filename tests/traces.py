"""Strict readers of traces: Chrome's format by its description, and Perfetto's by the classes of its own package."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

_NEEDED = {"X": {"ts", "dur"}, "i": {"ts", "s"}, "M": {"args"}}
_ABOUT = {"process_name", "process_sort_index", "thread_name", "thread_sort_index", "clock_alignment"}


@dataclass
class Slice:
    """Times in microseconds."""

    row: str
    name: str
    begin: float
    end: float
    args: dict = field(default_factory=dict)


@dataclass
class Trace:
    """rows: "process / thread"."""

    header: dict
    slices: list[Slice]
    rows: set[str]
    about: dict[str, list[dict]]

    def named(self, name: str, row: str = "") -> list[Slice]:
        return [entry for entry in self.slices if entry.name == name and row in entry.row]

    def names(self, row: str = "") -> set[str]:
        return {entry.name for entry in self.slices if row in entry.row}


def _check_nesting(slices: list[Slice]) -> None:
    """Slices of a row lie one in another or apart; otherwise viewers draw them wrongly."""
    by_row: dict[str, list[Slice]] = {}
    for entry in slices:
        by_row.setdefault(entry.row, []).append(entry)
    for row in by_row.values():
        open_slices: list[Slice] = []
        for entry in sorted(row, key=lambda entry: (entry.begin, -entry.end)):
            while open_slices and open_slices[-1].end <= entry.begin + 1e-3:
                open_slices.pop()
            assert not open_slices or entry.end <= open_slices[-1].end + 2e-3, (open_slices[-1], entry)
            open_slices.append(entry)


def check_chrome(path: Path) -> Trace:
    """Reads a timeline. AssertionError for anything that Chrome's trace format does not permit.

    Its description: "the ] at the end of the JSON Array is optional".
    """
    content = path.read_text()
    events = json.loads(content if content.endswith("]\n") else content + "]")
    assert isinstance(events, list) and events[0]["name"] == "sirtaki_timeline", events[:1]
    processes, threads, about = {}, {}, {}
    for event in events:
        assert event["ph"] in _NEEDED and event.keys() >= {"name", "pid", "tid"} | _NEEDED[event["ph"]], event
        assert event.keys() <= {"name", "ph", "pid", "tid", "ts", "dur", "s", "args"}, event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        if event["ph"] == "M" and event is not events[0]:
            assert event["name"] in _ABOUT, event
            about.setdefault(event["name"], []).append(event)
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = f"{processes[event['pid']]} / {event['args']['name']}"
    slices = []
    for event in events:
        if event["ph"] != "M":
            assert event["ts"] >= 0 or event["ph"] == "X", event
            assert event.get("dur", 0) >= 0, event
            row = threads[event["pid"], event["tid"]]
            slices.append(
                Slice(row, event["name"], event["ts"], event["ts"] + event.get("dur", 0), event.get("args", {}))
            )
    _check_nesting(slices)
    return Trace(events[0]["args"], slices, set(threads.values()), about)


def check_perfetto(path: Path) -> Trace:
    """Reads a trace of Perfetto. AssertionError for a slice that is not closed or that belongs to no track."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Packets
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    rows: dict[int, str] = {}
    begun: dict[int, list[tuple[str, float, dict]]] = {}
    slices: list[Slice] = []
    header: dict = {}
    packets = Packets.FromString(path.read_bytes()).packet
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            rows[track.uuid] = track.process.process_name or f"{rows[track.parent_uuid]} / {track.name}"
    for packet in sorted((p for p in packets if p.HasField("track_event")), key=_order):
        event, time = packet.track_event, packet.timestamp / 1e3
        args = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
        if event.name == "sirtaki_timeline":
            header = args
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            begun.setdefault(event.track_uuid, []).append((event.name, time, args))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, begin, own = begun[event.track_uuid].pop()
            slices.append(Slice(rows[event.track_uuid], name, begin, time, own))
        else:
            slices.append(Slice(rows[event.track_uuid], event.name, time, time, args))
    assert not any(begun.values()), begun
    return Trace(header, slices, set(rows.values()), {})


def _order(packet):
    return packet.timestamp


def read_any(path: Path) -> dict:
    """A trace of a profiler, as it lies in the file."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
