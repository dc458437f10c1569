"""Elastic jobs of `sirtakirun`: ranks that are lost, come back, are added and removed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import run, running

from sirtaki.job.elastic import discovery

PROGRAM = [sys.executable, str(Path(__file__).with_name("elastic_program.py"))]
SIGKILL = "killed by signal 9, SIGKILL (out of memory?)"


def notes(done: "subprocess.CompletedProcess[bytes]") -> list[str]:
    lines = done.stderr.decode().splitlines()
    return [
        line.removeprefix("sirtakirun: ") for line in lines if line.startswith("sirtakirun: ") and "_NUM_" not in line
    ]


def said(done: "subprocess.CompletedProcess[bytes]", number: int) -> list[str]:
    """What a process has printed."""
    prefix = f"[{number}] "
    return [line.removeprefix(prefix) for line in done.stdout.decode().splitlines() if line.startswith(prefix)]


def test_survivors_go_on_in_their_processes_and_a_new_one_takes_the_place(tmp_path: Path) -> None:
    words = ("9", "1@4=SIGKILL", "size:6=3")
    with running(tmp_path, "-np", "3", "--min-np", "2", *PROGRAM, *words) as job:
        out, error = job.process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], job.process.returncode, out, error)
        assert done.returncode == 0, error.decode()
        job.assert_nothing_left()
    first, newcomer = said(done, 0), said(done, 3)
    assert first[0] == "rank 0 of 3 at 0" and first[1].startswith("lost: rank 1 on host")
    assert first[2:] == ["rank 0 of 2 at 4", "rank 0 of 3 at 6", "done 9"], "no step is lost, and none is repeated"
    assert said(done, 2)[2:] == ["rank 1 of 2 at 4", "rank 1 of 3 at 6", "done 9"]
    assert newcomer == ["rank 2 of 3 at 6", "done 9"]
    assert notes(done) == [
        f"rank 1, process 1 on host localhost failed: {SIGKILL}",
        "the job goes on with 2 ranks",
        "the job goes on with 3 ranks",
    ]


def test_a_rank_that_is_gone_does_not_wait_for_its_wrapper(tmp_path: Path) -> None:
    """Its slot gets a new process while the wrapper still runs, and each generation has a timeline of its own."""
    program = tmp_path / "wrapper.sh"
    program.write_text(f"trap '' TERM; {' '.join(PROGRAM)} 9 1@4=SIGKILL size:6=2 || sleep 60\n")
    timeline = ("--timeline-filename", str(tmp_path / "t.json"))
    words = ("--min-np", "1", "--grace-seconds", "1", *timeline, "sh", str(program))
    with running(tmp_path, "-np", "2", *words) as job:
        out, error = job.process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], job.process.returncode, out, error)
        assert done.returncode == 0, error.decode()
        job.assert_nothing_left()
    assert said(done, 2) == ["rank 1 of 2 at 6", "done 9"], error.decode()
    assert any("is gone without shutdown()" in note for note in notes(done)), error.decode()
    found = [json.loads((tmp_path / name).read_text()) for name in ("t.json", "t.generation2.json")]
    assert [events[0]["args"]["ranks"] for events in found] == [2, 1]


def test_a_script_adds_and_removes_slots(tmp_path: Path) -> None:
    """The members come back together, after a step that all have made; the removed process leaves with exit code 0."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    script = f"cat {hosts}"
    words = ("9", "size:3=3", "size:6=2")
    with running(
        tmp_path, "-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", script, *PROGRAM, *words
    ) as job:
        assert job.process.stdout is not None
        lines = []
        for line in job.process.stdout:
            lines.append(line)
            if b"rank 0 of 2 at 0" in line:
                (tmp_path / "new").write_text("localhost:3\n")
                (tmp_path / "new").replace(hosts)
            if b"rank 0 of 3 at 3" in line:
                (tmp_path / "new").write_text("localhost:2\n")
                (tmp_path / "new").replace(hosts)
        assert job.process.stderr is not None
        error = job.process.stderr.read()
        done = subprocess.CompletedProcess([], job.process.wait(), b"".join(lines), error)
    assert done.returncode == 0, error.decode()
    assert said(done, 0) == ["rank 0 of 2 at 0", "rank 0 of 3 at 3", "rank 0 of 2 at 6", "done 9"]
    assert said(done, 2) == ["rank 2 of 3 at 3"]
    assert b"[2] sirtaki: this process leaves the job: its slot was removed\n" in error


@pytest.mark.parametrize(
    ("options", "words", "code", "last"),
    [
        (
            ["--min-np", "1", "--reset-limit", "0"],
            ["9", "1@4=SIGKILL"],
            137,
            "the job has failed: Horovod was shutdown because number of resets during elastic job exceeded limit: 0",
        ),
        pytest.param(
            ["--min-np", "2", "--elastic-timeout", "8", "--blacklist-cooldown-range", "20", "60"],
            ["9", "1@4=exit:7"],
            7,
            "the job has failed: only 1 of at least 2 processes called init() within --elastic-timeout",
            marks=pytest.mark.long,
        ),
        (["--min-np", "1"], ["9", "0@0=exit:3", "1@0=exit:3"], 3, "the job has failed: every slot has failed"),
    ],
    ids=["reset limit", "too few", "all"],
)
def test_ends_that_name_the_first_failure(options: list[str], words: list[str], code: int, last: str) -> None:
    done = run("-np", "2", *options, *PROGRAM, *words)
    assert done.returncode == code, done.stderr.decode()
    assert notes(done)[-2] == last and " failed first: " in notes(done)[-1]


def test_an_exception_of_one_process_is_shown_and_the_others_go_on() -> None:
    done = run("-np", "2", "--min-np", "1", *PROGRAM, "6", "0@4=raise")
    assert done.returncode == 0, done.stderr.decode()
    assert notes(done)[0] == "rank 0, process 0 on host localhost failed: ValueError: a fault of the program"
    assert b"[0] ValueError: a fault of the program\n" in done.stderr
    assert said(done, 1)[-2:] == ["rank 0 of 1 at 4", "done 6"]


def test_a_failure_after_the_first_rank_has_finished_fails_the_job() -> None:
    code = "import os, sys, time; rank = os.environ['HOROVOD_RANK']; time.sleep(int(rank)); sys.exit(5 * int(rank))"
    done = run("-np", "2", "--min-np", "1", sys.executable, "-S", "-c", code)
    assert done.returncode == 5 and "exit code 5" in notes(done)[-1], done.stderr.decode()


def test_a_script_that_fails_at_the_start_is_an_error() -> None:
    done = run("-np", "2", "--host-discovery-script", "echo broken >&2; exit 4", "true")
    assert done.returncode == 2
    assert notes(done) == ["--host-discovery-script echo broken >&2; exit 4: exit code 4: broken"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_launcher_ends_all(number: int, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    code = f"import os, time; open(f'{ready}/' + os.environ['HOROVOD_RANK'], 'w').close(); time.sleep(60)"
    with running(tmp_path, "-np", "2", "--min-np", "1", sys.executable, "-S", "-c", code) as job:
        job.wait_for(ready, 2)
        os.kill(job.process.pid, number)
        job.process.wait(timeout=30)
        assert job.process.returncode == (143 if number == signal.SIGTERM else -9)
        job.assert_nothing_left()


def test_a_script_that_hangs_ends_with_all_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_LONGEST", 0.5)
    script = f"sleep 60 & echo $! > {tmp_path / 'pid'}; wait"
    with pytest.raises(ValueError, match=r"it has not ended within 0\.5 s"):
        discovery.run(script, 1)
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


def test_a_function_that_is_left_by_an_exit_is_no_success(tmp_path: Path) -> None:
    """sys.exit(0) of one rank; then ranks that disagree about a call, twice: each rank that is left fails."""
    body = """
import sys
import torch
import sirtaki.torch as hvd

hvd.init()
state = hvd.elastic.TorchState(batch=0)
@hvd.elastic.run
def train(state):
    while state.batch < 3:
        if sys.argv[1] == "exit" and hvd.rank() == 1:
            sys.exit(0)
        wrong = hvd.rank() if sys.argv[1] == "disagree" and hvd.size() > 1 else 0
        hvd.allreduce(torch.ones(2 + wrong), name="x")
        state.batch += 1
    print("trained", hvd.size(), flush=True)
train(state)
"""
    program = tmp_path / "program.py"
    program.write_text(body)
    limits = ("--reset-limit", "1", "--blacklist-cooldown-range", "30", "60")
    left = run("-np", "2", "--min-np", "1", *limits, sys.executable, str(program), "exit")
    assert left.returncode == 0 and left.stdout.count(b"trained 1") == 1, left.stderr
    assert b"train() was ended by sys.exit(0) on rank 1" in left.stderr
    assert b"rank 1, process 1 on host localhost failed" in left.stderr
    differ = run("-np", "2", "--min-np", "1", *limits, sys.executable, str(program), "disagree")
    assert differ.returncode == 1 and b"trained" not in differ.stdout, (differ.stdout, differ.stderr)
    assert differ.stderr.count(b"shape") >= 2, differ.stderr
