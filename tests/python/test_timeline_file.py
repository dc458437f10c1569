"""The timeline's file: complete at any moment, bounded, and what its spans are made of."""

import fcntl
import gzip
import itertools
import json
import os
import posix
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from traces import check_chrome, check_perfetto

from sirtaki.launch import timeline_command
from sirtaki.native import core
from sirtaki.timeline.chrome_trace import HEADER, ChromeForm, parse
from sirtaki.timeline.perfetto_trace import PerfettoForm
from sirtaki.timeline.rows import Rows
from sirtaki.timeline.shared_file import SharedFile
from sirtaki.timeline.spans import Span, Spans
from sirtaki.timeline.steps import Steps, parse_steps
from sirtaki.timing.records import Record

FORMS = [pytest.param(ChromeForm, "t.json", id="chrome"), pytest.param(PerfettoForm, "t.pftrace", id="perfetto")]
FIRST = {"name": HEADER, "ph": "M", "pid": 0, "tid": 0, "args": {"monotonic_ns": 5}}
_KILLED = """
import sys
from sirtaki.timeline.chrome_trace import ChromeForm
from sirtaki.timeline.shared_file import SharedFile
file = SharedFile(sys.argv[1], ChromeForm(), 1 << 20)
number = 0
while True:
    event = {"name": "x" * 5000, "ph": "i", "s": "t", "pid": 1, "tid": 0, "ts": number}
    file.append([event] * 20)
    number += 1
    print(number, flush=True)
"""


def event(number: int) -> dict:
    return {"name": f"event {number}", "ph": "X", "pid": 0, "tid": 0, "ts": number, "dur": 0.5}


def names(path: Path) -> list[str]:
    if path.suffix == ".json":
        return [entry["name"] for entry in json.loads(path.read_text()) if entry["ph"] != "M"]
    trace = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    return [
        packet.track_event.name
        for packet in trace.packet
        if packet.track_event.name not in ("", HEADER) and not packet.HasField("track_descriptor")
    ]


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_file_is_whole_after_each_write_and_heals(form, name, tmp_path):
    path = tmp_path / name
    file, other = (SharedFile(str(path), form(), 1 << 20) for _ in range(2))
    file.create([FIRST])
    assert names(path) == [] and file.first()["args"]["monotonic_ns"] == 5
    for number, writer in enumerate([file, other, other, file]):
        writer.append([event(number)])
        assert names(path) == [f"event {n}" for n in range(number + 1)]
    whole = path.read_bytes()
    for cut in range(len(whole) - 60, len(whole) + 1):  # what a killed writer may leave
        path.write_bytes(whole[:cut])
        other.close()
        other.append([event(9)])
        found = names(path)
        assert found[-1] == "event 9" and found[:-1] == [f"event {n}" for n in range(len(found) - 1)]
        assert len(found) >= 4


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_file_keeps_the_newest_events_and_all_names_of_rows(form, name, tmp_path):
    path = tmp_path / name
    file, other = (SharedFile(str(path), form(), 8000) for _ in range(2))
    rows = Rows(0, "host", {"offset_ns": 0, "error_ns": 1})
    file.create([FIRST, *rows.events([], 0)])
    for number in range(500):
        (file, other)[number % 2].append([event(number)])
        assert path.stat().st_size <= 8000
    found = names(path)
    assert found == [f"event {n}" for n in range(500 - len(found), 500)] and len(found) > 30
    assert file.first() is not None
    if form is ChromeForm:
        assert "thread_name" in path.read_text()
    else:
        assert check_perfetto(path).rows >= {"rank 0 on host / steps"}
    assert os.listdir(tmp_path) == [name]


def test_a_program_that_reads_its_own_timeline_does_not_release_the_lock(tmp_path):
    path = tmp_path / "t.json"
    file = SharedFile(str(path), ChromeForm(), 1 << 20)
    file.create([FIRST])
    with file._locked(), path.open() as other:
        path.read_text()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_write_that_ends_early_takes_no_event_apart(tmp_path, monkeypatch):
    path, writes = tmp_path / "t.json", []
    file = SharedFile(str(path), ChromeForm(), 1 << 20)
    file.create([FIRST])
    monkeypatch.setattr(os, "pwrite", lambda _, data, at: writes.append((at, bytes(data))) or write(_, data, at))
    write, numbers = posix.pwrite, itertools.count()
    for count in (1, 50, 400):
        file.append([event(next(numbers)) for _ in range(count)])
    assert names(path) == [f"event {n}" for n in range(451)]
    content, cuts = bytearray(tmp_path.joinpath("t.json").read_bytes()), 0
    content[writes[0][0] :] = ChromeForm.tail
    for at, data in writes:
        for cut in range(-at % 4096, len(data), 4096):  # a kernel ends a write at a page's end
            found = parse(bytes(content[:at] + data[:cut] + content[at + cut :]))
            assert all(entry == event(number) for number, entry in enumerate(found[1:])), (at, cut)
            cuts += cut > 0
        content[at:] = data
        assert json.loads(content)
    assert cuts == len(content) // 4096 and len(writes) <= cuts + 3


def test_a_killed_writer_leaves_a_file_that_others_go_on_with(tmp_path):
    path = tmp_path / "t.json"
    file = SharedFile(str(path), ChromeForm(), 1 << 20)
    file.create([FIRST])
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE) as writer:
            for _ in range(5):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        file.append([event(0)])
        assert json.loads(path.read_text())[-1]["name"] == "event 0"


# Spans


Kind = types.SimpleNamespace(**{kind.upper(): kind for kind in core.RECORD_KINDS})


def record(kind: str, time: int, **fields) -> Record:
    plain = {"bytes": 0, "number": 0, "peer": -1, "group": 0, "planned": False, "verb": 1, "name": 0}
    return Record(time=time, kind=kind, **{**plain, **fields})


def made(entries: list[Record], **options) -> list[Span]:
    chosen = {"mark_cycles": False, "steps": Steps(), **options}
    spans = Spans({1: "allreduce"}, {7: "allreduce.a", 8: "allreduce.b"}, **chosen)
    return spans.feed(entries)


def test_phases_of_a_voted_tensor():
    spans = made(
        [
            record(Kind.SUBMITTED, 1000, name=7, bytes=64),
            record(Kind.VOTED, 1500, name=7),
            record(Kind.AGREED, 3000, name=7, peer=2, bytes=900),
            record(Kind.BATCH_READY, 3000, number=1, bytes=64),
            record(Kind.BATCH_BEGIN, 3500, number=1, bytes=64),
            record(Kind.BATCH_END, 5200, number=1, bytes=64, peer=0),
            record(Kind.COMPLETED, 5300, name=7, bytes=64, peer=0),
        ]
    )
    row = [(span.name, span.begin, span.length) for span in spans if span.row == "allreduce.a"]
    assert row == [
        ("NEGOTIATE_ALLREDUCE", 1000, 2000),
        ("ALLREDUCE", 3000, 2300),
        ("QUEUE", 3000, 500),
        ("EXCHANGE", 3500, 1700),
    ]
    assert spans[1].args == {"last_rank": 2, "late_us": 0.9, "bytes": 64}
    assert [(span.name, span.begin, span.length) for span in spans if span.row == "batches"] == [
        ("batch 1", 3500, 1700)
    ]


def test_phases_of_a_planned_batch_and_of_one_that_was_called_off():
    batch = {"number": 4, "bytes": 8, "planned": True}
    spans = made(
        [
            record(Kind.SUBMITTED, 1000, name=8, bytes=8),
            record(Kind.BATCH_BEGIN, 1100, **batch),
            record(Kind.BATCH_END, 1200, **{**batch, "peer": 2}),
            record(Kind.PLAN_LEFT, 1200),
            record(Kind.BATCH_BEGIN, 2000, **batch),
            record(Kind.ALL_ARRIVED, 4000, **{**batch, "peer": 1, "bytes": 2500}),
            record(Kind.BATCH_END, 4600, **{**batch, "peer": 0, "name": 8}),
        ],
        mark_cycles=True,
    )
    row = [(span.name, span.begin, span.length) for span in spans if span.row == "allreduce.b"]
    assert row == [("NEGOTIATE_ALLREDUCE", 1000, 3000), ("ALLREDUCE", 4000, 600), ("EXCHANGE", 4000, 600)]
    assert {"last_rank": 1, "late_us": 2.5, "bytes": 8} in [span.args for span in spans if span.name == "ALLREDUCE"]
    assert [span.name for span in spans if span.row == "batches"] == ["planned batch 4", "PLAN_LEFT", "planned batch 4"]
    assert [span.begin for span in spans if span.name == "CYCLE_START"] == [1100, 2000]


@pytest.mark.parametrize(("text", "wanted"), [("0:", [0, 1, 2, 3]), ("1:3", [1, 2]), (":1", [0]), ("3:9", [3])])
def test_steps_that_are_wanted(text, wanted):
    entries = itertools.chain.from_iterable(
        (
            record(Kind.WAIT_BEGIN, 1000 * n + 500),
            record(Kind.WAIT_END, 1000 * n + 900),
            record(Kind.STEP_END, 1000 * n + 1000),
        )
        for n in range(4)
    )
    spans = made(list(entries), steps=parse_steps(text))
    assert [span.name for span in spans if span.row == "steps"] == [f"step {n}" for n in wanted]
    assert [span.begin for span in spans if span.row == "waits"] == [1000 * n + 500 for n in wanted]


@pytest.mark.parametrize("text", ["", "3", "3:3", "4:2", "a:b", "-1:2"])
def test_a_wrong_range_of_steps_is_refused(text):
    with pytest.raises(ValueError, match="is no range of steps"):
        parse_steps(text)


def test_batches_on_the_gpu_have_a_row():
    spans = Spans({1: "allreduce"}, {}, False, Steps(2, 5))
    spans.steps.count(500)
    spans.steps.count(900)
    times = [(0, False, 8, 1, 64, 800, 850), (0, False, 9, 1, 64, 1000, 1500), (3, True, 10, 1, 32, 1600, 1900)]
    assert spans.feed_gpu(times) == [
        Span("GPU", "ALLREDUCE", 1000, 500, {"batch": 9, "bytes": 64}),
        Span("GPU", "ALLREDUCE (process set 3)", 1600, 300, {"batch": 10, "bytes": 32, "locked_plan": True}),
    ]


def test_what_is_under_way_is_shown_as_unfinished():
    spans = Spans({1: "allreduce"}, {7: "allreduce.a"}, False, Steps())
    spans.feed([record(Kind.SUBMITTED, 1000, name=7, bytes=4), record(Kind.WAIT_BEGIN, 1200)])
    found = {span.name: (span.begin, span.length, span.args["unfinished"]) for span in spans.close(5000)}
    assert found == {"NEGOTIATE_ALLREDUCE": (1000, 4000, True), "WAIT": (1200, 3800, True)}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x0a\x02\x08\x01", "is no JSON: expected a timeline of Sirtaki"),
        (b"[]", "does not say when its times begin"),
        (b'{"traceEvents": []}', "does not say when its times begin"),
        (b"[1, 2]", "does not say when its times begin"),
        (b'[{"name": "sirtaki_timeline"}]', "does not say when its times begin"),
        (gzip.compress(b"[]" * 99, mtime=0)[:20], "is no JSON: expected a timeline of Sirtaki"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_merged_is_named(content, why, tmp_path, capsys):
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    if content is not None:
        path.write_bytes(content)
    assert timeline_command.main(["merge", str(path), "-o", str(out)]) == 1
    told = capsys.readouterr().err
    assert why in told and str(path) in told and not out.exists()
    assert timeline_command.main(["plot", str(path), "-o", str(out)]) == 1


def test_many_tensors_share_a_row(tmp_path):
    rows = Rows(3, "host", {"offset_ns": 0, "error_ns": 0})
    spans = [Span(f"t{n}", "ALLREDUCE", 10, 5, {}) for n in range(2500)]
    path = tmp_path / "t.json"
    SharedFile(str(path), ChromeForm(), 1 << 22).create([FIRST, *rows.events(spans, 0)])
    found = check_chrome(path)
    assert len(found.rows) <= 2001 and "rank 3 on host / other tensors" in found.rows
