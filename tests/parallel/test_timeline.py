"""The timeline of running jobs: Horovod's expectations, all ranks in one file, and together with torch's profiler."""

import contextlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from ranks import ranks
from traces import check_chrome, check_perfetto, read_any

import sirtaki.torch as hvd
from sirtaki.launch import timeline_command
from sirtaki.native import core
from sirtaki.timeline import writer

VERBS = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")


@contextlib.contextmanager
def shared_folder():
    """The same new folder on all ranks."""
    with tempfile.TemporaryDirectory() as own:
        yield Path(hvd.broadcast_object(own, 0, name="folder"))
        hvd.barrier()


@ranks(2)
def test_horovods_expectations_of_its_own_test(rank_count, monkeypatch):
    """A program of Horovod's looks into the file 0.1 s after its call, while the timeline goes on."""
    with shared_folder() as folder:
        path = folder / "t.json"
        monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
        monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
        hvd.shutdown()
        hvd.init()
        hvd.allreduce(torch.tensor([1.0, 2.0, 3.0]), name="test_allreduce")
        text, until = "", time.monotonic() + 20
        while '"ALLREDUCE"' not in text and time.monotonic() < until:
            time.sleep(0.1)
            text = path.read_text()
        json.loads(text)
        for expected in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", '"ALLREDUCE"', "CYCLE_START"):
            assert expected in text, text
        assert _files_of_a_fork(path) == 0
        monkeypatch.delenv("HOROVOD_TIMELINE")
        hvd.shutdown()  # ends the timeline, too
        hvd.init()
        trace = check_chrome(path)
        for rank in range(2):
            assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= trace.names(f"rank {rank} on")
        assert len(trace.about["clock_alignment"]) == 2


def _files_of_a_fork(path) -> int:
    """How many descriptors of this file a forked child has: with one it would keep the lock after its parent's end."""
    child = os.fork()
    if child == 0:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        os._exit(sum(os.path.exists(link) and os.readlink(link) == str(path) for link in links))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@ranks(3)
def test_a_timeline_starts_and_stops_when_asked(rank_count):
    with shared_folder() as folder:
        path = folder / "t.json"
        for mark_cycles in (False, True):
            name = f"round{mark_cycles}"
            hvd.allreduce(torch.ones(2), name=f"before.{name}")
            hvd.start_timeline(str(path), mark_cycles=mark_cycles)
            with pytest.raises(ValueError, match=r"a timeline is being written to .*t\.json; call stop_timeline"):
                hvd.start_timeline(str(folder / "other.json"))
            hvd.allreduce(torch.ones(1000), name=name)
            hvd.allgather(torch.ones(1), name=name)
            hvd.broadcast(torch.ones(1), 0, name=name)
            hvd.alltoall(torch.ones(3), name=name)
            hvd.reducescatter(torch.ones(3), name=name)
            hvd.stop_timeline()
            hvd.stop_timeline()  # harmless
            hvd.allreduce(torch.ones(2), name=f"after.{name}")
            trace = check_chrome(path)
            _check_round(trace, name, rank_count)
            cycles = trace.named("CYCLE_START")
            assert len(cycles) >= 2 * rank_count if mark_cycles else not cycles
            hvd.barrier()
        assert os.listdir(folder) == ["t.json"]


def _check_round(trace, name, rank_count):
    assert trace.header["ranks"] == rank_count
    tensors = {row.partition(" / ")[2] for row in trace.rows} - {"steps", "waits", "batches", "cycles", "barrier"}
    assert not {row for row in tensors if row.startswith(("allreduce.before", "allgather.before"))}, tensors
    for rank in range(rank_count):
        for verb in VERBS:
            row = f"rank {rank} on {os.uname().nodename} / {verb.lower()}.{name}"
            (negotiation,), (operation,) = trace.named(f"NEGOTIATE_{verb}", row), trace.named(verb, row)
            assert negotiation.end == pytest.approx(operation.begin) and operation.end > operation.begin
            if rank == 0:
                assert operation.args["last_rank"] in range(rank_count) and operation.args["late_us"] >= 0
    for verb in VERBS:  # one clock: no rank ends before all have begun
        begun = [entry.begin for entry in trace.named(f"NEGOTIATE_{verb}", f".{name}")]
        ended = [entry.end for entry in trace.named(verb, f".{name}")]
        assert len(begun) == rank_count and max(begun) <= min(ended)


@ranks(2)
def test_wrong_uses_of_a_timeline(rank_count, caplog):
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=r"the timeline '/no/such/t.json' cannot be written: No such file"):
            hvd.start_timeline("/no/such/t.json")
        for path in ("", None, 3):
            with pytest.raises(ValueError, match="file_path must be the name of a file"):
                hvd.start_timeline(path)
        with pytest.raises(ValueError, match="mark_cycles must be True or False, got 'maybe'"):
            hvd.start_timeline("t.json", mark_cycles="maybe")
    else:
        hvd.start_timeline(os.path.join(tempfile.gettempdir(), f"none.{os.getpid()}.json"))
    hvd.barrier()
    with caplog.at_level(logging.WARNING, "sirtaki"):
        hvd.stop_timeline()
    assert ("no rank has made this file on this host" in caplog.text) == (hvd.rank() == 1)
    hvd.barrier()
    hvd.shutdown()
    for call in (hvd.stop_timeline, lambda: hvd.start_timeline("t.json")):
        with pytest.raises(ValueError, match="init"):
            call()
    hvd.init()


@ranks(2)
def test_a_host_that_does_not_see_the_file_has_its_own(rank_count, monkeypatch):
    with shared_folder() as folder:
        if hvd.rank() == 1:
            monkeypatch.setattr(writer, "_UNSEEN", 0)
            for name, value in (("local_rank", 0), ("cross_rank", 1)):
                monkeypatch.setattr(core, name, lambda value=value: value)
            monkeypatch.setattr(writer.socket, "gethostname", lambda: "other")
            (folder / "other").mkdir()
        hvd.start_timeline(str(folder / ("other" if hvd.rank() else "") / "t.json"))
        for _ in range(3):
            hvd.allreduce(torch.ones(1), name="of_both")
        hvd.stop_timeline()
        hvd.barrier()
        files = [folder / "t.json", folder / "other/t.other.json"]
        assert [len(check_chrome(file).named("ALLREDUCE")) for file in files] == [3, 3]
        both = str(folder / f"both{hvd.rank()}.json")
        assert timeline_command.main(["merge", *map(str, files), "-o", both]) == 0
        spans = [e for e in read_any(Path(both))["traceEvents"] if "ALLREDUCE" in e["name"]]
        begun = [[e["ts"] for e in spans if e["pid"] == rank and e["name"][0] == "N"] for rank in range(2)]
        ended = [[e["ts"] + e["dur"] for e in spans if e["pid"] == rank and e["name"][0] == "A"] for rank in range(2)]
        assert all(max(a, b) <= min(c, d) for a, b, c, d in zip(*begun, *ended, strict=True)), (begun, ended)


def train(steps, groups=2):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), num_groups=groups)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(64, 512)).sum().backward()
        optimizer.step()


@ranks(2)
def test_together_with_a_trace_of_torch(rank_count):
    from torch.profiler import ProfilerActivity, profile

    with shared_folder() as folder:
        ours, theirs, both = folder / "ours.json", folder / f"torch.{hvd.rank()}.json", folder / "both.json.gz"
        hvd.start_timeline(str(ours))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            train(steps=4)
        hvd.stop_timeline()
        profiler.export_chrome_trace(str(theirs))
        hvd.barrier()
        if hvd.rank() == 0:
            check_chrome(ours)
            _draw(ours, folder / "t.png")
            assert timeline_command.main(["merge", str(ours), str(theirs), "-o", str(both)]) == 0
            _check_overlap(read_any(both), len(read_any(theirs)["traceEvents"]) + len(read_any(ours)))


def _draw(timeline, picture):
    assert timeline_command.main(["plot", str(timeline), "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def _check_overlap(merged, count):
    """A gradient of the first group to be complete is reduced while backward computes the other one."""
    events = merged["traceEvents"]
    assert len(events) == count
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(processes) == 3 and sum(name.startswith("rank 0 on ") for name in processes.values()) == 1
    own = next(pid for pid, name in processes.items() if name.startswith("rank 0 on "))
    reduced = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["pid"] == own and e["name"] in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE")
    ]
    backward = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X" and e["name"] == "AddmmBackward0" and e["pid"] != own
    ]
    assert len(backward) >= 16 and len(reduced) >= 16
    overlaps = sum(min(b, d) - max(a, c) > 0 for a, b in reduced for c, d in backward)
    assert overlaps >= 4, (reduced, backward)
    assert json.dumps(merged)


@ranks(2)
def test_perfettos_format_in_a_job(rank_count, monkeypatch):
    monkeypatch.setenv("SIRTAKI_TIMELINE_STEPS", "1:3")
    with shared_folder() as folder:
        path = folder / "t.pftrace"
        hvd.start_timeline(str(path))
        train(steps=5)
        hvd.stop_timeline()
        hvd.barrier()
        trace = check_perfetto(path)
        for rank in range(rank_count):
            row = f"rank {rank} on {os.uname().nodename}"
            assert trace.names(f"{row} / steps") == {"step 1", "step 2"}
            assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "EXCHANGE"} <= trace.names(row)
        assert trace.header["ranks"] == rank_count
