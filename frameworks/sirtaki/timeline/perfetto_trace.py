"""Perfetto's trace format: a sequence of packets. The package `perfetto` has its classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sirtaki.timeline.chrome_trace import HEADER
from sirtaki.timeline.shared_file import Event

_PACKET = 0x0A  # tag of a packet in a trace
_FILE_TRACK = 1
_MOST_DIGITS = 5  # of a packet's length, seven bits each


class PerfettoForm:
    """ValueError if the package is not installed."""

    head = b""
    tail = b""
    filler = b""

    def __init__(self) -> None:
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        except ImportError as error:
            raise ValueError(
                f"a timeline *.pftrace needs the package perfetto (pip install 'sirtaki[timeline]'): {error}"
            ) from None
        self._types: Any = perfetto_trace_pb2
        self._kinds = perfetto_trace_pb2.TrackEvent.Type

    def encode(self, events: Sequence[Event], first: bool) -> list[bytes]:
        return [self._encoded(event) for event in events]

    def _encoded(self, event: Event) -> bytes:
        trace = self._types.Trace()
        self._add(trace, event)
        return bytes(trace.SerializeToString())

    def _add(self, trace: Any, event: Event) -> None:
        track = _process_track(event["pid"]) + event["tid"] + 1
        if event["name"] in ("process_name", "thread_name"):
            self._describe(trace, event)
        elif event["name"] == HEADER:
            self._event(trace, event, "TYPE_INSTANT", _FILE_TRACK, 0)
        elif event["ph"] == "X":
            self._event(trace, event, "TYPE_SLICE_BEGIN", track, event["ts"])
            packet = self._packet(trace, event["ts"] + event["dur"])
            packet.track_event.type = self._kinds.Value("TYPE_SLICE_END")
            packet.track_event.track_uuid = track
        elif event["ph"] == "i":
            self._event(trace, event, "TYPE_INSTANT", track, event["ts"])
        elif not event["name"].endswith("_sort_index"):
            self._event(trace, event, "TYPE_INSTANT", _process_track(event["pid"]), 0)

    def _packet(self, trace: Any, time: float) -> Any:
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = 1
        packet.timestamp = max(0, round(time * 1000))
        return packet

    def _describe(self, trace: Any, event: Event) -> None:
        descriptor = self._packet(trace, 0).track_descriptor
        descriptor.uuid = _process_track(event["pid"])
        if event["name"] == "process_name":
            descriptor.process.pid = event["pid"] + 1  # 0 is no process
            descriptor.process.process_name = event["args"]["name"]
        else:
            descriptor.parent_uuid = descriptor.uuid
            descriptor.uuid += event["tid"] + 1
            descriptor.name = event["args"]["name"]

    def _event(self, trace: Any, event: Event, kind: str, track: int, time: float) -> None:
        entry = self._packet(trace, time).track_event
        entry.type, entry.track_uuid, entry.name = self._kinds.Value(kind), track, event["name"]
        for name, value in event.get("args", {}).items():
            note = entry.debug_annotations.add()
            note.name = name
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = str(value)

    def complete(self, content: bytes) -> int:
        end = 0
        for _, end in _packets(content):  # noqa: B007
            pass
        return end

    def newest(self, content: bytes, size: int) -> bytes:
        return b"".join(
            content[begin:end]
            for begin, end in _packets(content)
            if begin >= len(content) - size or self._describes(content[begin:end])
        )

    def _describes(self, content: bytes) -> bool:
        packet = self._types.Trace.FromString(content).packet[0]
        return bool(packet.HasField("track_descriptor") or packet.track_event.track_uuid == _FILE_TRACK)

    def first(self, content: bytes) -> Event | None:
        for begin, end in _packets(content):
            event = self._types.Trace.FromString(content[begin:end]).packet[0].track_event
            if event.name != HEADER:
                return None
            notes = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
            return {"name": HEADER, "args": notes}
        return None


def _process_track(pid: int) -> int:
    return (pid + 1) << 32


def _packets(content: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each complete packet."""
    begin = 0
    while begin < len(content) and content[begin] == _PACKET:
        length, at = 0, begin + 1
        for digit in range(_MOST_DIGITS):
            if at >= len(content):
                return
            length |= (content[at] & 0x7F) << 7 * digit
            at += 1
            if content[at - 1] < 0x80:
                break
        if at + length > len(content):
            return
        yield begin, at + length
        begin = at + length
