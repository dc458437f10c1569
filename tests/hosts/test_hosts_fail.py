"""What goes wrong on one of three hosts ends the job everywhere, with the cause last and nothing left."""

import re
import subprocess
import time

import pytest
from simulated import READY, START, Hosts, last_line, report

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
    ("how", "code", "words"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom (program.py:"),
        ("os._exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), 9)", 137, "killed by signal 9, SIGKILL"),
        ("sys.exit(0)", 1, "rank 2 left early"),
    ],
    ids=["raises", "exits", "is_killed", "leaves_early"],
)
def test_one_rank_fails(how: str, code: int, words: str, hosts: Hosts) -> None:
    """C15, C45, C58: the cause last, with the traceback if there is one; who waited for that rank says so in a line."""
    done = hosts.run_program(ONE_FAILS.format(how=how))
    text = report(done)
    assert done.returncode == code, text
    assert words in last_line(done), text
    if how == "sys.exit(0)":
        return
    assert last_line(done).startswith("sirtakirun: rank 2 on host n3 failed first: "), text
    (told,) = [line for line in text.splitlines() if line.startswith("[0] ")]
    assert re.match(r"\[0\] ended in program\.py:\d+ by SirtakiInternalError, because rank 2 on host n3 ", told), text
    end = done.stderr.decode().splitlines()[-10:]
    assert code != 1 or {"[2] Traceback (most recent call last):", "[2] ValueError: boom"} <= set(end), text


def test_segments_of_ranks_that_are_killed(networks: Hosts) -> None:
    """Two ranks of one host share memory; the fixture sees to it that none is left."""
    program = networks.program("meet('a')\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)\n")
    done = networks.run(*networks.flags("n1:2,n2:2", 4), *program)
    assert done.returncode == 137, report(done)


@pytest.mark.long
def test_stray_rank_and_missing_rank(either: Hosts) -> None:
    """C11, C16: who waits for what, and from which line; and where the rank is that does not come."""
    done = either.run_program("meet('a')\nmeet('b' if rank == 1 else 'a')\n", **QUICK)
    text = report(done)
    assert done.returncode not in (0, None), text
    for rank, name in enumerate("aba"):
        assert re.search(rf"rank {rank} \(n{rank + 1}\) waits for '{name}' from program\.py:\d+ for", text), text
        assert re.search(rf"^\[{rank}\] ", text, re.MULTILINE), text
    body = "def busy():\n    time.sleep(100)\nif rank == 2: busy()\nmeet('lonely')\n"
    done = either.run_program(body, **QUICK)
    text = report(done)
    assert done.returncode not in (0, None), text
    assert re.search(r"'lonely' has waited \d+ s for rank 2; ranks 0, 1 reached it", text), text
    assert re.search(r"rank 2 \(n3\) waits for nothing\n(.*\n)*.*in busy\n", text), text
    assert "rank 2 on host n3" in last_line(done), text


def test_late_rank_is_no_fault_and_ranks_that_disagree_are(either: Hosts) -> None:
    """C17, C47."""
    body = """
import numpy
meet("first")
if rank == 0: time.sleep(2.5)
meet("second")
def ask(name, verb="allreduce", shape=(2, 3), dtype="float32", **options):
    block = numpy.ones(shape, dtype)
    tensor = (block.ctypes.data, block.ctypes.data, core.DTYPES[dtype], shape, -1)
    try:
        core.submit(core.VERBS[verb], name, [tensor], site="here.py:1", **options).wait()
    except Exception as error:
        print(error)
odd = rank == 1
ask("w", shape=(3, 2) if odd else (2, 3), op=core.OPS["sum"])
ask("x", dtype="float64" if odd else "float32", op=core.OPS["sum"])
ask("y", op=core.OPS["max" if odd else "sum"])
ask("z", "broadcast", root=1 if odd else 0)
"""
    done = either.run_program(body, **(QUICK | {"SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "20"}))
    text = report(done)
    assert done.returncode == 0, text
    late = [line for line in text.splitlines() if "has waited" in line]
    assert 1 <= len(late) <= 3 and all("for rank 0" in line for line in late), text
    assert len([line for line in text.splitlines() if "'second' continues after" in line]) == 1, text
    tables = [
        ("'w': shape", "allreduce +Sum +- +{shape} +float32"),
        ("'x': dtype", "allreduce +Sum +- +.2, 3. +{dtype}"),
        ("'y': op", "allreduce +{op} +- +.2, 3. +float32"),
        ("'z': root rank", "broadcast +- +{root} +.2, 3. +float32"),
    ]
    usual, odd = (
        {"shape": ".2, 3.", "dtype": "float32", "op": "Sum", "root": 0},
        {"shape": ".3, 2.", "dtype": "float64"},
    )
    odd |= {"op": "Max", "root": 1}
    for rank in range(3):
        own = "".join(line for line in done.stdout.decode().splitlines(True) if line.startswith(f"[{rank}] "))
        for what, row in tables:
            rows = [rf"\[{rank}\] +{r} +{row.format(**(odd if r == 1 else usual))} .*here\.py:1\n" for r in range(3)]
            assert re.search(rf"ranks disagree on {what} differs\.\n.*\n{''.join(rows)}", own), (what, own)


@pytest.mark.long
def test_a_rank_that_never_calls_init(hosts: Hosts) -> None:
    """C63: a rank that never calls init."""
    hosts.dies_inside_mpi_init = True
    which = "(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])"
    start = START.replace("hvd.init()", f"if {which} == '2': time.sleep(100)\nhvd.init()")
    done = hosts.run(*hosts.flags(), *hosts.program("", start), SIRTAKI_START_TIMEOUT="6")
    text = report(done)
    assert done.returncode not in (0, None)
    assert re.search("2 of 3 ranks arrived .*missing: rank 2", text), text


def test_plain_mpiexec(hosts: Hosts) -> None:
    """C23: without our launcher on the hosts; rank 2 raises before its first collective."""
    program = hosts.program("if rank == 2: raise ValueError('boom')\nmeet('first')\n")
    done = hosts.run_by_mpiexec("n1,n2,n3", 3, *program)
    text = report(done)
    assert done.returncode not in (0, None), text
    assert re.search(r"^\[rank 2\]   File .*program\.py", text, re.MULTILINE), text
    assert "[rank 2] ValueError: boom" in text.splitlines(), text
    for rank in range(2):
        (told,) = [line for line in text.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert "because rank 2 on host " in told and "ValueError: boom" in told, text


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
