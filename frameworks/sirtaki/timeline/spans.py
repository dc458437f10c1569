"""Turns the records of one rank into the spans of a timeline: one row for each tensor, and some for the rank.

A tensor's row has Horovod's phases: NEGOTIATE_ALLREDUCE until all ranks are ready, then ALLREDUCE, with QUEUE and
EXCHANGE inside. A batch of a locked plan has no votes: its barrier takes their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sirtaki.timeline.steps import Steps
from sirtaki.timing.records import Record

STEPS, WAITS, BATCHES, GPU, CYCLES = "steps", "waits", "batches", "GPU", "cycles"
RANK_ROWS = (STEPS, WAITS, BATCHES, GPU, CYCLES)
_DONE, _CALLED_OFF = 0, 2
_MOST_ROWS = 10_000  # whose last span is remembered


class Span(NamedTuple):
    """begin: ns of CLOCK_MONOTONIC. length: ns; -1 for an instant."""

    row: str
    name: str
    begin: int
    length: int
    args: dict[str, Any]


@dataclass
class _Call:
    verb: int
    submitted: int
    bytes: int
    agreed: int = 0
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Batch:
    begin: int = 0
    all_arrived: int = 0
    end: int = 0
    carried: bool = False  # by a data plane
    args: dict[str, Any] = field(default_factory=dict)  # the rank that was last


class Spans:
    """verbs: names by number. names: of tensors, by their hash; may grow. mark_cycles: an instant for each batch."""

    def __init__(self, verbs: Mapping[int, str], names: Mapping[int, str], mark_cycles: bool, steps: Steps) -> None:
        self.steps = steps
        self._verbs = verbs
        self._names = names
        self._mark_cycles = mark_cycles
        self._calls: dict[tuple[int, int], deque[_Call]] = {}  # a name may be submitted again before its call is over
        self._completed_at: dict[str, int] = {}
        self._batches: dict[tuple[bool, int, int], _Batch] = {}
        self._ended: dict[int, _Batch] = {}  # the last one of each group
        self._waits: list[int] = []
        self._step_since = 0
        self._made: list[Span] = []

    def feed(self, records: Iterable[Record]) -> list[Span]:
        """records: in the order of time. Returns the spans that have ended."""
        for record in records:
            self._step_since = self._step_since or record.time
            _ACTIONS.get(record.kind, Spans._nothing)(self, record)
        return self._take()

    def feed_gpu(self, times: Iterable[tuple[int, bool, int, int, int, int, int]]) -> list[Span]:
        """times: of batches on the GPU, as core.gpu_times() returns them."""
        for group, planned, number, verb, size, begin, end in times:
            args = {"batch": number, "bytes": size, **({"locked_plan": True} if planned else {})}
            self._add(GPU, _of_set(self._verb(verb), group), begin, end, args)
        return self._take()

    def _take(self) -> list[Span]:
        made, self._made = self._made, []
        return [span for span in made if self.steps.has(span.begin)]

    def close(self, now: int) -> list[Span]:
        """What is under way now, as spans with `unfinished` in their arguments."""
        for (group, name), calls in self._calls.items():
            call, row = calls[0], self._row(name, group)
            verb = self._verb(call.verb)
            phase = verb if call.agreed else f"NEGOTIATE_{verb}"
            begin = max(call.agreed or call.submitted, self._completed_at.get(row, 0))
            self._add(row, phase, begin, now, {**call.args, "bytes": call.bytes, "unfinished": True})
        for begin in self._waits:
            self._add(WAITS, "WAIT", begin, now, {"unfinished": True})
        self._calls.clear()
        self._waits.clear()
        return self.feed(())

    def _add(self, row: str, name: str, begin: int, end: int, args: dict[str, Any]) -> None:
        self._made.append(Span(row, name, begin, max(0, end - begin), args))

    def _mark(self, row: str, name: str, time: int) -> None:
        self._made.append(Span(row, name, time, -1, {}))

    def _row(self, name: int, group: int) -> str:
        return _of_set(self._names[name], group)

    def _verb(self, number: int) -> str:
        return self._verbs.get(number, "?").upper()

    def _batch(self, record: Record) -> _Batch:
        return self._batches.setdefault((record.planned, record.group, record.number), _Batch())

    # One for each kind of record.

    def _submitted(self, record: Record) -> None:
        calls = self._calls.setdefault((record.group, record.name), deque())
        calls.append(_Call(record.verb, record.time, record.bytes))

    def _agreed(self, record: Record) -> None:
        calls = self._calls.get((record.group, record.name))
        if not calls:
            return
        call = calls[0]
        call.agreed = record.time
        call.args = _last(record)

    def _batch_begin(self, record: Record) -> None:
        self._batch(record).begin = record.time
        if self._mark_cycles:
            self._mark(CYCLES, "CYCLE_START", record.time)

    def _all_arrived(self, record: Record) -> None:
        batch = self._batch(record)
        batch.all_arrived, batch.args = record.time, _last(record)

    def _batch_end(self, record: Record) -> None:
        batch = self._batches.pop((record.planned, record.group, record.number), None)
        if batch is None:
            return
        batch.end = record.time
        batch.carried = record.peer == _DONE and self._verb(record.verb) != "BARRIER"
        args: dict[str, Any] = {"bytes": record.bytes}
        if record.peer == _CALLED_OFF:
            args["called_off"] = True
        else:
            self._ended[record.group] = batch
        name = f"{'planned batch' if record.planned else 'batch'} {record.number}"
        self._add(_of_set(BATCHES, record.group), name, batch.begin or record.time, record.time, args)
        if record.name:  # the end of its only request, too
            self._completed(record)

    def _completed(self, record: Record) -> None:
        calls = self._calls.get((record.group, record.name))
        if not calls:
            return  # submitted before the timeline began
        call = calls.popleft()
        if not calls:
            del self._calls[record.group, record.name]
        batch = self._ended.get(record.group)
        if batch is None or batch.end < call.submitted:
            batch = _Batch()  # a group of one rank copies at once
        row = self._row(record.name, record.group)
        begin = max(call.submitted, self._completed_at.get(row, 0))
        if len(self._completed_at) >= _MOST_ROWS:
            self._completed_at.clear()
        self._completed_at[row] = record.time
        self._add_call(row, call, batch, begin, record.time)

    def _add_call(self, row: str, call: _Call, batch: _Batch, begin: int, end: int) -> None:
        verb = self._verb(call.verb)
        decided = min(max(call.agreed or batch.all_arrived or batch.begin, begin), end)
        args = {**batch.args, **call.args, "bytes": call.bytes}
        self._add(row, f"NEGOTIATE_{verb}", begin, decided, args)
        self._add(row, verb, decided, end, args)
        exchange = min(max(batch.begin, batch.all_arrived, decided), end)
        if exchange > decided:
            self._add(row, "QUEUE", decided, exchange, {})
        if batch.carried and batch.end > exchange:
            self._add(row, "EXCHANGE", exchange, min(batch.end, end), {})

    def _wait_begin(self, record: Record) -> None:
        self._waits.append(record.time)

    def _wait_end(self, record: Record) -> None:
        if self._waits:
            self._add(WAITS, "WAIT", self._waits.pop(), record.time, {})

    def _step_end(self, record: Record) -> None:
        self._add(STEPS, f"step {self.steps.ended}", self._step_since, record.time, {})
        self._step_since = record.time
        self.steps.count(record.time)

    def _plan_locked(self, record: Record) -> None:
        self._mark(BATCHES, "PLAN_LOCKED", record.time)

    def _plan_left(self, record: Record) -> None:
        self._mark(BATCHES, "PLAN_LEFT", record.time)

    def _nothing(self, record: Record) -> None:
        pass


def _last(record: Record) -> dict[str, Any]:
    return {"last_rank": record.peer, "late_us": record.bytes / 1e3} if record.peer >= 0 else {}


def _of_set(row: str, group: int) -> str:
    return f"{row} (process set {group})" if group else row


_KINDS = ("submitted", "agreed", "batch_begin", "all_arrived", "batch_end", "completed")
_OTHERS = ("wait_begin", "wait_end", "step_end", "plan_locked", "plan_left")
_ACTIONS = {kind: getattr(Spans, f"_{kind}") for kind in (*_KINDS, *_OTHERS)}
