"""Jobs without MPI on three hosts: the own start through the agents, and an elastic job that loses a host's rank."""

import subprocess
import sys
from pathlib import Path

import launching
import pytest
from simulated import Hosts, report

TWICE = """
hvd.shutdown()
hvd.init()
meet("again")
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank(), hvd.mpi_enabled(), flush=True)
"""
PROGRAM = [sys.executable, str(Path(__file__).parents[1] / "python" / "elastic_program.py")]


def said(done: "subprocess.CompletedProcess[bytes]", number: int) -> list[str]:
    prefix = f"[{number}] "
    return [line.removeprefix(prefix) for line in done.stdout.decode().splitlines() if line.startswith(prefix)]


def test_ranks_start_through_the_agents_without_mpi(hosts: Hosts) -> None:
    done = hosts.run(*hosts.flags("n1:1,n2:2,n3:1", 4), "--gloo", *hosts.program(TWICE))
    assert done.returncode == 0, report(done)
    lines = sorted(done.stdout.decode().splitlines())
    assert lines == ["[0] 0 4 0 0 False", "[1] 1 4 0 1 False", "[2] 2 4 1 0 False", "[3] 3 4 0 2 False"], report(done)


def test_an_elastic_job_loses_a_process_of_another_host(hosts: Hosts) -> None:
    words = ("8", "1@3=SIGKILL", "size:5=3")
    done = hosts.run("--min-np", "2", *hosts.flags(), *PROGRAM, *words)
    assert done.returncode == 0, report(done)
    assert said(done, 0)[2:] == ["rank 0 of 2 at 3", "rank 0 of 3 at 5", "done 8"], report(done)
    assert said(done, 3) == ["rank 2 of 3 at 5", "done 8"]


def test_a_host_that_is_not_reached_does_not_keep_the_others_from_training(hosts: Hosts) -> None:
    flags = hosts.flags("n1:1,n2:1,n9:1", 2)
    done = hosts.run("--min-np", "2", *flags, *PROGRAM, "4")
    assert done.returncode == 0, report(done)
    assert said(done, 1) == ["rank 1 of 2 at 0", "done 4"], report(done)
    assert b"process 2 on host n9 failed: the host was not reached: " in done.stderr, report(done)


def test_a_script_adds_a_host_that_was_unknown_at_the_start(hosts: Hosts) -> None:
    counter = hosts.folder / "counter"
    script = f"echo x >> {counter}; echo n1:1; [ $(wc -l < {counter}) -lt 2 ] || echo n2:1"
    words = ("8", "size:3=2")
    flags = ["-np", "1", "--host-discovery-script", script, *hosts.machine.flags]
    done = hosts.run(*flags, *PROGRAM, *words)
    assert done.returncode == 0, report(done)
    assert said(done, 0) == ["rank 0 of 1 at 0", "rank 0 of 2 at 3", "done 8"], report(done)
    assert said(done, 1) == ["rank 1 of 2 at 3", "done 8"], report(done)


@pytest.mark.long
def test_the_others_go_on_without_a_host_that_is_cut_off(networks: Hosts) -> None:
    """Its own processes end, and the kernel of no rank waits for it."""
    path = networks.folder / "go"
    words = (*networks.flags(), "--min-np", "2", *PROGRAM, "20", f"file:10={path}")
    enter, environ = networks.machine.enter("n1"), networks.machine.environment() | {"SIRTAKI_LOST_HOST_SECONDS": "2"}
    with launching.running(networks.folder, *words, enter=enter, **environ) as job:
        assert job.process.stdout is not None
        lines = []
        while sum(line.endswith(b" of 3 at 0\n") for line in lines) < 3:
            lines.append(job.process.stdout.readline())
        networks.machine.cut("n2")
        try:
            path.touch()
            out, error = job.process.communicate(timeout=60)
            networks.assert_nothing_left()
        finally:
            networks.machine.mend("n2")
    assert job.process.returncode == 0, error.decode()
    assert b"[0] rank 0 of 2 at " in out and b"[0] done 20\n" in out and b"[2] done 20\n" in out
    assert b"rank 1, process 1 on host n2 failed: the connection to that host is lost: " in error, error.decode()
