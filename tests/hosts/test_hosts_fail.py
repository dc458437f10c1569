"""What goes wrong on one of three hosts ends the job everywhere, with the cause last and nothing left."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from simulated import PLAIN, START, Hosts, last_line, report

READY = "open(f'{sys.argv[1]}/{rank}', 'w').close()\n"
# A program that ignores what can be ignored, with a child that does too.
STUBBORN = """
import subprocess
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
"""
# One that leaves when it is told, and says by which signal.
POLITE = """
def leave(number, frame):
    open(f"{sys.argv[1]}/told-{rank}-{number}", "w").close()
    sys.exit(0)
for number in (1, 2, 15): signal.signal(number, leave)
"""
QUICK = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "2"}
# The others are in a collective, or compute on.
ONE_FAILS = """
meet("first")
if rank == 2:
    {how}
if rank == 0:
    meet("second")
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("raise ValueError('boom')", 1), ("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("sys.exit(0)", None)],
    ids=["raises", "exits", "is_killed", "leaves_early"],
)
def test_one_rank_fails(how: str, code: int | None, hosts: Hosts) -> None:
    """C15, C45, C58."""
    begin = time.monotonic()
    done = hosts.run_program(ONE_FAILS.format(how=how))
    assert time.monotonic() - begin < 30
    text = report(done)
    assert done.returncode == code if code is not None else done.returncode not in (0, None), text
    end = "\n".join(text.strip().splitlines()[-10:])
    assert "rank 2" in end and (code is None or "n3" in end), text
    if code == 1:
        assert "boom" in end and "program.py" in text, text


def test_segments_of_ranks_that_are_killed(networks: Hosts) -> None:
    """Two ranks of one host share memory; the fixture sees to it that none is left."""
    program = networks.program("meet('a')\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)\n")
    done = networks.run(*networks.flags("n1:2,n2:2", 4), *program)
    assert done.returncode == 137, report(done)


def test_stray_rank_and_missing_rank(either: Hosts) -> None:
    """C11, C16: who waits for what, and from which line; and where the rank is that does not come."""
    done = either.run_program("meet('a')\nmeet('b' if rank == 1 else 'a')\n", **QUICK)
    text = report(done)
    assert done.returncode not in (0, None), text
    for rank, name in enumerate("aba"):
        assert any(f"rank {rank} " in line and f"'{name}'" in line for line in text.splitlines()), text
    assert "program.py:" in text
    body = "def busy():\n    time.sleep(100)\nif rank == 2: busy()\nmeet('lonely')\n"
    done = either.run_program(body, **QUICK)
    text = report(done)
    assert done.returncode not in (0, None) and "lonely" in text and "in busy" in text, text


def test_late_rank_is_no_fault_and_shapes_that_differ_are(either: Hosts) -> None:
    """C17, C47."""
    body = """
import numpy
meet("first")
if rank == 0: time.sleep(2.5)
meet("second")
shape = (3, 2) if rank == 1 else (2, 3)
block = numpy.ones(shape, numpy.float32)
tensor = (block.ctypes.data, block.ctypes.data, core.DTYPES["float32"], shape, -1)
try:
    core.submit(core.VERBS["allreduce"], "w", [tensor], op=core.OPS["sum"], site="here.py:1").wait()
except Exception as error:
    print(error)
"""
    done = either.run_program(body, **(QUICK | {"SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "20"}))
    text = report(done)
    assert done.returncode == 0, text
    late = [line for line in text.splitlines() if "has waited" in line]
    assert 1 <= len(late) <= 3 and all("for rank 0" in line for line in late), text
    for rank in range(3):
        for other, shape in enumerate(("(2, 3)", "(3, 2)", "(2, 3)")):
            row = rf"^\[{rank}\] +{other} +allreduce .*{re.escape(shape)} .*here\.py:1$"
            assert re.search(row, done.stdout.decode(), re.MULTILINE), text


def test_not_all_there(hosts: Hosts) -> None:
    """C63: a rank that never calls init."""
    hosts.dies_inside_mpi_init = True
    which = "(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])"
    start = START.replace("hvd.init()", f"if {which} == '2': time.sleep(100)\nhvd.init()")
    done = hosts.run(*hosts.flags(), *hosts.program("", start), SIRTAKI_START_TIMEOUT="3")
    text = report(done)
    assert done.returncode not in (0, None)
    assert re.search("2 of 3 ranks arrived .*missing: rank 2", text), text


def test_plain_mpiexec(hosts: Hosts) -> None:
    """C23: without our launcher on the hosts; rank 2 raises before its first collective."""
    program = hosts.program("if rank == 2: raise ValueError('boom')\nmeet('first')\n")
    done = hosts.run_by_mpiexec("n1,n2,n3", 3, *program)
    text = report(done)
    assert done.returncode not in (0, None), text
    assert "[rank 2] ValueError: boom" in text, text


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_signal_to_the_launcher(name: str, hosts: Hosts) -> None:
    """C57. The fixture sees to it that nothing is left on any host."""
    number = signal.Signals[name]
    body = STUBBORN if number == signal.SIGKILL else POLITE
    with hosts.running(body + READY + "time.sleep(300)\n", start=PLAIN) as job:
        job.wait_for(hosts.there, 3)
        assert sum(map(len, hosts.left().values())) >= 9
        job.process.send_signal(number)
        error = job.process.communicate(timeout=20)[1]
        assert job.process.returncode == (-9 if number == signal.SIGKILL else 128 + number), error
        job.assert_nothing_left()
        hosts.assert_nothing_left()
        told = sorted(path.name for path in hosts.there.glob("told-*"))
        assert told == ([] if number == signal.SIGKILL else [f"told-{rank}-{number}" for rank in range(3)])


@pytest.mark.parametrize("victim", ["start_agent.py", "hydra_pmi_proxy", "remote_shell.py", "start_worker.py"])
def test_kill_of_the_machinery(victim: str, either: Hosts) -> None:
    """kill -9 of what brings the ranks to n3 and watches them there."""
    with either.running(READY + "time.sleep(300)\n", start=PLAIN) as job:
        job.wait_for(either.there, 3)
        if victim == "remote_shell.py":
            found = [
                pid
                for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if b"remote_shell.py n3 " in _words(pid)
            ]
        else:
            found = [pid for pid in either.machine.processes("n3") if victim.encode() in _words(pid)]
        assert found
        os.kill(found[-1], signal.SIGKILL)
        error = job.process.communicate(timeout=20)[1].decode()
        assert job.process.returncode not in (0, None), error
        assert "rank 2 on host n3" in error.splitlines()[-1] or victim == "hydra_pmi_proxy", error
        job.assert_nothing_left()
        either.assert_nothing_left()


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def test_host_dies(hosts: Hosts) -> None:
    with hosts.running("meet('a')\n" + READY + "meet('b' if rank else 'a')\ntime.sleep(300)\n") as job:
        job.wait_for(hosts.there, 3)
        hosts.machine.kill("n2")
        error = job.process.communicate(timeout=20)[1].decode()
        assert job.process.returncode not in (0, None)
        assert "rank 1 on host n2" in error.strip().splitlines()[-1], error
        job.assert_nothing_left()


def test_link_is_cut(networks: Hosts) -> None:
    """The host lives on, but nobody hears of it: both sides end by themselves."""
    body = "meet('a')\n" + READY + "meet('b' if rank else 'a')\ntime.sleep(300)\n"
    with networks.running(body, SIRTAKI_LOST_HOST_SECONDS="2") as job:
        job.wait_for(networks.there, 3)
        networks.machine.cut("n2")
        try:
            error = job.process.communicate(timeout=20)[1].decode()
            networks.assert_nothing_left()
        finally:
            networks.machine.mend("n2")
        assert job.process.returncode not in (0, None)
        assert re.search("rank 1 on host n2 failed first.*: the connection to that host is lost", error), error


def test_link_that_comes_back_is_no_fault(networks: Hosts) -> None:
    body = "meet('a')\n" + READY + "time.sleep(1)\nfor step in range(50): meet('b')\nprint('done')\n"
    with networks.running(body, SIRTAKI_LOST_HOST_SECONDS="20") as job:
        job.wait_for(networks.there, 3)
        networks.machine.cut("n3")
        time.sleep(1.5)
        networks.machine.mend("n3")
        output, error = job.process.communicate(timeout=50)
        assert job.process.returncode == 0, error
        assert output.decode().count("done") == 3


def test_slow_link(networks: Hosts) -> None:
    reason = networks.machine.delay("n2", "20ms")
    if reason:
        pytest.skip(f"no delay on links here: {reason}")
    try:
        done = networks.run_program("for step in range(20): meet('a')\nprint('done')\n")
    finally:
        networks.machine.delay("n2", "")
    assert done.returncode == 0 and done.stdout.count(b"done") == 3, report(done)


def test_agent_that_cannot_reach_the_launcher_says_so(networks: Hosts) -> None:
    """ssh works, but the way back is closed."""
    networks.dies_inside_mpi_init = True
    enter = networks.machine.enter("n1")
    done = subprocess.run([*enter, "/bin/sh", "-c", "ip address add 10.99.0.1/24 dev lo"], capture_output=True)
    assert done.returncode == 0, done
    try:
        done = networks.run(
            *networks.flags(), "--network-interfaces", "lo", "--start-timeout", "9", *networks.program("")
        )
    finally:
        subprocess.run([*enter, "ip", "address", "del", "10.99.0.1/24", "dev", "lo"], check=True)
    text = report(done)
    assert done.returncode not in (0, None)
    assert re.search("host n2 was not reached: .*cannot reach the launcher: .*--network-interfaces", text), text
    assert last_line(done)
