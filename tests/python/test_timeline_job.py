"""The timeline of a job of three ranks that ends early: the file is whole, also if a rank or the job is killed."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from launching import run, running, written
from traces import Trace, check_chrome, check_perfetto

STEPS = """
from sirtaki import exchange
number, until = 0, time.monotonic() + 60
while time.monotonic() < until:
    exchange.allreduce_largest(bytes(1000), "bytes")
    core.end_step()
    number += 1
    if number == 30:
        time.sleep(0.3)  # a written file is of interest
        if {killed} and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            open({mark!r}, "w").close()
"""


def check_ranks(trace: Trace) -> None:
    for rank in range(3):
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= trace.names(f"rank {rank} on "), rank
        assert len(trace.named("ALLREDUCE", f"rank {rank} on ")) >= 30


@pytest.mark.parametrize(("name", "check"), [("t.json", check_chrome), ("t.pftrace", check_perfetto)])
def test_a_rank_that_is_killed(name: str, check, tmp_path: Path) -> None:
    path = tmp_path / name
    body = STEPS.format(killed=True, mark=str(tmp_path / "mark"))
    done = run("-np", "3", "--timeline-filename", str(path), *written(tmp_path, body))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    check_ranks(check(path))


def test_a_job_that_is_killed(tmp_path: Path) -> None:
    path, mark = tmp_path / "t.json", tmp_path / "mark"
    body = STEPS.format(killed=False, mark=str(mark))
    with running(tmp_path, "-np", "3", "--timeline-filename", str(path), *written(tmp_path, body)) as job:
        until = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < until and job.process.poll() is None
            time.sleep(0.01)
        for process in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    check_ranks(check_chrome(path))
