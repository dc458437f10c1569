"""Jobs without MPI on three hosts: the own start through the agents, and an elastic job that loses a host's rank."""

import subprocess
import sys
import time
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


def read_until(job: launching.Running, count: int, ending: bytes) -> list[bytes]:
    """Lines of the job's output, until so many of them have this ending."""
    assert job.process.stdout is not None
    lines: list[bytes] = []
    while sum(line.endswith(ending) for line in lines) < count:
        lines.append(job.process.stdout.readline())
        assert lines[-1], b"".join(lines)
    return lines


@pytest.mark.long
def test_the_others_go_on_without_a_host_that_is_cut_off_and_take_it_back(networks: Hosts) -> None:
    """Its own processes end, and the kernel of no rank waits for it. When it is back, it gets a rank again."""
    path = networks.folder / "go"
    program = (*PROGRAM, "20", f"file:10={path}", "size:15=3")
    words = (*networks.flags(), "--min-np", "2", "--blacklist-cooldown-range", "1", "2", *program)
    enter, environ = networks.machine.enter("n1"), networks.machine.environment() | {"SIRTAKI_LOST_HOST_SECONDS": "2"}
    with launching.running(networks.folder, *words, enter=enter, **environ) as job:
        read_until(job, 3, b" of 3 at 0\n")
        networks.machine.cut("n2")
        try:
            path.touch()
            read_until(job, 2, b" of 2 at 10\n")
        finally:
            networks.machine.mend("n2")
        out, error = job.process.communicate(timeout=60)
        networks.assert_nothing_left()
    assert job.process.returncode == 0, error.decode()
    assert out.count(b" of 3 at 15\n") == 3 and out.count(b"done 20\n") == 3, (out, error)
    assert b"rank 1, process 1 on host n2 failed: the connection to that host is lost: " in error, error.decode()


@pytest.mark.long
def test_a_host_that_is_cut_off_for_a_moment_is_not_lost(networks: Hosts) -> None:
    path = networks.folder / "go"
    words = (*networks.flags(), "--min-np", "2", *PROGRAM, "20", f"file:10={path}")
    enter, environ = networks.machine.enter("n1"), networks.machine.environment() | {"SIRTAKI_LOST_HOST_SECONDS": "10"}
    with launching.running(networks.folder, *words, enter=enter, **environ) as job:
        read_until(job, 3, b" of 3 at 0\n")
        networks.machine.cut("n2")
        path.touch()
        time.sleep(1.5)  # the ranks are in a step meanwhile
        networks.machine.mend("n2")
        out, error = job.process.communicate(timeout=60)
        networks.assert_nothing_left()
    assert job.process.returncode == 0, error.decode()
    assert out.count(b"done 20\n") == 3 and b" of 2 at " not in out and b"failed" not in error, (out, error)
