"""Writes a job's timeline while it runs: each rank adds its spans to one file, by a thread that exists only meanwhile.

Rank 0 makes the file. The others wait for it, so that none of them adds to the file of an earlier job. On a host that
does not see it, the first rank makes one with the host's name. All times are those of rank 0's clock.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import threading
import time

from sirtaki import settings
from sirtaki.libraries import gpu_libraries
from sirtaki.native import core
from sirtaki.timeline.chrome_trace import HEADER, ChromeForm
from sirtaki.timeline.perfetto_trace import PerfettoForm
from sirtaki.timeline.rows import Rows
from sirtaki.timeline.shared_file import Form, SharedFile
from sirtaki.timeline.spans import STEPS, Span, Spans
from sirtaki.timeline.steps import parse_steps
from sirtaki.timing.records import Record, decode

_INTERVAL = 0.05  # seconds between two writes; programs for Horovod look into the file 0.1 s after a call
_UNSEEN = 3.0  # seconds after which rank 0's file counts as invisible on this host
_GPU_ENDS = 2.0  # seconds for the GPU to end the batches that are queued when the timeline ends
_MOST_WAITING = 100_000  # spans, while there is no file
_SKEW = 60 * 10**9  # ns by which the clocks of two hosts may differ

_log = logging.getLogger("sirtaki")
_lock = threading.Lock()
_current: Timeline | None = None
_joined_at = 0  # ns of CLOCK_MONOTONIC, before this job's init()


class _Names(dict[int, str]):
    """Names of tensors by their hash; fetched when one is missing."""

    def __missing__(self, key: int) -> str:
        self.update(core.recorded_names())
        return self.setdefault(key, f"tensor {key:08x}")


class Timeline:
    """A timeline of this rank, until stop(). OSError on rank 0 if the file cannot be made; ValueError if its form is
    not available.
    """

    def __init__(self, path: str, mark_cycles: bool, chosen: settings.TimelineSettings) -> None:
        self.path = os.path.abspath(settings.file_of_this_start(path))
        form: Form = PerfettoForm() if path.endswith(".pftrace") else ChromeForm()
        self._file = SharedFile(self.path, form, chosen.limit)
        base, suffix = os.path.splitext(self.path)
        self._of_host = SharedFile(f"{base}.{socket.gethostname()}{suffix}", form, chosen.limit)
        self._is_first = core.rank() == 0
        self._started = time.monotonic_ns()
        may_make_own = core.local_rank() == 0 and core.cross_rank() != 0
        self._makes_own_at = time.monotonic() + _UNSEEN if may_make_own else math.inf
        self._offset, self._error = core.clock_offset_ns()
        self._zero: int | None = None  # own clock's time of the file's 0; None until there is a file
        verbs = {number: name for name, number in core.VERBS.items()}
        self._spans = Spans(verbs, _Names(), mark_cycles, parse_steps(chosen.steps))
        self._waiting: list[Span] = []  # for the file
        self._later: list[Record] = []
        core.record_names(True)
        core.mark_ranges(gpu_libraries.nvtx() if chosen.marks_ranges else [])
        core.time_gpu(True)
        _, self._cursor, _ = core.records(0)
        if self._is_first:
            self._create(self._file)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sirtaki-timeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left."""
        self._ends.set()
        self._thread.join()
        core.record_names(False)
        core.mark_ranges([])
        core.time_gpu(False)
        self._file.close()

    def close_files(self) -> None:
        """For a forked child: otherwise it would hold the lock on the file after the end of its parent."""
        self._file.close()
        self._of_host.close()

    def _create(self, file: SharedFile) -> None:
        start = time.time_ns() - (time.monotonic_ns() - self._started)
        facts = {
            "start_time_since_epoch_in_micros": start // 1000,
            "start_time_since_epoch_in_nanos": start,
            "monotonic_ns": self._started + self._offset,  # of rank 0's clock
            "ranks": core.size(),
        }
        header = {"name": HEADER, "ph": "M", "pid": 0, "tid": 0, "args": facts}
        file.create([header])
        self._use(file, self._started + self._offset)

    def _use(self, file: SharedFile, start: int) -> None:
        """start: of the file's times, ns of rank 0's clock."""
        self._file = file
        self._zero = start - self._offset
        alignment = {"offset_ns": self._offset, "error_ns": self._error}
        self._rows = Rows(core.rank(), socket.gethostname(), alignment)

    def _run(self) -> None:
        try:
            while not self._ends.wait(_INTERVAL) and not self._spans.steps.over():
                self._write(self._read(final=False))
            self._write(self._read(final=True))
        except OSError as error:
            _log.warning("the timeline %s ends here: %s", self.path, error)
        if self._zero is None and self._waiting:
            _log.warning("no timeline %s: no rank has made this file on this host", self.path)

    def _read(self, final: bool) -> list[Span]:
        """Records of the last moment wait for the next time: another thread may still write an earlier one."""
        until = time.monotonic_ns()
        data, self._cursor, lost = core.records(self._cursor)
        records = [*self._later, *decode(data)]
        records.sort(key=lambda record: record.time)
        count = len(records) if final else sum(record.time < until for record in records)
        self._later = records[count:]
        spans = self._spans.feed(records[:count])
        if lost:
            spans.append(Span(STEPS, f"{lost} records lost", until, -1, {}))
        spans += self._spans.feed_gpu(self._gpu_times(final))
        return spans + self._spans.close(until) if final else spans

    def _gpu_times(self, final: bool) -> list[tuple[int, bool, int, int, int, int, int]]:
        """At the end of the timeline the GPU may still work on the last batches."""
        times, waiting = core.gpu_times()
        end = time.monotonic() + _GPU_ENDS
        while final and waiting and time.monotonic() < end:
            time.sleep(_INTERVAL)
            more, waiting = core.gpu_times()
            times += more
        return times

    def _write(self, spans: list[Span]) -> None:
        if not self._is_first and self._file.is_replaced():
            self._look_for_file()
            if self._zero is None and time.monotonic() >= self._makes_own_at:
                self._create(self._of_host)
        if self._zero is None:
            self._waiting = [*self._waiting, *spans][-_MOST_WAITING:]
            return
        wanted = [span for span in (*self._waiting, *spans) if span.begin + max(0, span.length) >= self._zero]
        self._waiting.clear()
        self._file.append(self._rows.events(wanted, self._zero))

    def _look_for_file(self) -> None:
        """Rank 0 may have made the file, or made it anew for another timeline."""
        file = next((file for file in (self._file, self._of_host) if file.first() is not None), None)
        header = file.first() if file is not None else None
        if file is None or header is None:
            return
        start, at = int(header["args"]["monotonic_ns"]), int(header["args"]["start_time_since_epoch_in_nanos"])
        own = start - self._offset
        is_of_job = (
            own + self._error >= _joined_at and at >= time.time_ns() - (time.monotonic_ns() - _joined_at) - _SKEW
        )
        if is_of_job and own != self._zero:
            self._use(file, start)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a timeline: a JSON file of Chrome's trace format, or of Perfetto's if its name ends in .pftrace.

    Every rank that calls this adds its rows to rank 0's file. mark_cycles: also marks where each batch begins.
    ValueError before init(), while a timeline is being written, or for a file that cannot be made.

    >>> hvd.start_timeline("timeline.json")
    >>> hvd.stop_timeline()
    """
    core.rank()
    if not isinstance(file_path, (str, os.PathLike)) or not os.fspath(file_path):
        raise ValueError(f"start_timeline: file_path must be the name of a file, got {file_path!r}")
    if mark_cycles not in (True, False):
        raise ValueError(f"start_timeline: mark_cycles must be True or False, got {mark_cycles!r}")
    chosen = settings.timeline()
    _start(os.fspath(file_path), bool(mark_cycles), chosen)


def _start(path: str, mark_cycles: bool, chosen: settings.TimelineSettings) -> None:
    global _current
    if core.step_times() is None:
        raise ValueError(
            f"no timeline {path!r}: SIRTAKI_RECORDER=0 has switched off the recorder, from which it is made"
        )
    with _lock:
        if _current is not None:
            raise ValueError(f"a timeline is being written to {_current.path}; call stop_timeline() first")
        try:
            _current = Timeline(path, mark_cycles, chosen)
        except OSError as error:
            core.record_names(False)
            core.mark_ranges([])
            core.time_gpu(False)
            raise ValueError(f"the timeline {path!r} cannot be written: {error.strerror or error}") from error
        atexit.register(_stop)


def stop_timeline() -> None:
    """Ends the timeline; the file is complete then for this rank. No effect without one. ValueError before init()."""
    core.rank()
    _stop()


def _stop() -> None:
    global _current
    with _lock:
        current, _current = _current, None
    if current is not None:
        atexit.unregister(_stop)
        current.stop()


def before_init() -> None:
    """Called before this process joins a job. ValueError for wrong settings."""
    global _joined_at
    settings.timeline()
    _joined_at = time.monotonic_ns()


def after_init(generation: int) -> None:
    """Begins the timeline for which the environment asks. One that cannot be written is no reason to end the job.

    generation: of the ranks of an elastic job. Each after the first has a file of its own: their ranks are others.
    """
    chosen = settings.timeline()
    if chosen.path and chosen.path != settings.DYNAMIC:
        base, suffix = os.path.splitext(chosen.path)
        path = chosen.path if generation < 2 else f"{base}.generation{generation}{suffix}"
        try:
            _start(path, chosen.mark_cycles, chosen)
        except ValueError as error:
            _log.warning("%s", error)


def before_shutdown() -> None:
    _stop()


def _forget() -> None:
    """In a forked child: the thread is not there, and the file is its parent's."""
    global _current, _lock
    if _current is not None:
        _current.close_files()
    _current, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
