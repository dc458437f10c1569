"""A rank's spans as events of Chrome's trace format: the rank is a process there, and each row a thread."""

from __future__ import annotations

from collections.abc import Iterable

from sirtaki.timeline.shared_file import Event
from sirtaki.timeline.spans import RANK_ROWS, Span

_MOST = 2000  # rows of a rank; further tensors share one
_OTHERS = "other tensors"


class Rows:
    """The rows of one rank. host: where it runs. alignment: what the file says of this rank's clock."""

    def __init__(self, rank: int, host: str, alignment: dict[str, int]) -> None:
        self._rank = rank
        self._numbers: dict[str, int] = {}
        self._new = [
            self._about("process_name", 0, {"name": f"rank {rank} on {host}"}),
            self._about("process_sort_index", 0, {"sort_index": rank}),
            self._about("clock_alignment", 0, dict(alignment)),
        ]
        for name in RANK_ROWS:
            self._number(name)

    def events(self, spans: Iterable[Span], zero: int) -> list[Event]:
        """The events of these spans, after those that describe new rows. zero: the own clock's time of the file's 0."""
        events = [self._event(span, zero) for span in spans]
        new, self._new = self._new, []
        return new + events

    def _about(self, name: str, row: int, args: dict[str, object]) -> Event:
        return {"name": name, "ph": "M", "pid": self._rank, "tid": row, "args": args}

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            if len(self._numbers) >= _MOST:
                name = _OTHERS
            if name not in self._numbers:
                row = self._numbers[name] = len(self._numbers)
                self._new.append(self._about("thread_name", row, {"name": name}))
                self._new.append(self._about("thread_sort_index", row, {"sort_index": row}))
        return self._numbers[name]

    def _event(self, span: Span, zero: int) -> Event:
        row = self._number(span.row)
        event: Event = {"name": span.name, "pid": self._rank, "tid": row, "ts": (span.begin - zero) / 1e3}
        if span.length < 0:
            event |= {"ph": "i", "s": "t"}
        else:
            event |= {"ph": "X", "dur": span.length / 1e3}
        args = span.args
        if self._numbers.get(_OTHERS) == row:
            args = {**args, "tensor": span.row}
        if args:
            event["args"] = args
        return event
