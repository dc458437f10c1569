"""`preempted()`: a signal to the launcher, to one rank or to all lets every rank stop after the same step."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launching import JOINED, Running, environment, run, running, written

import sirtaki as hvd
from sirtaki.job.rank import preemption

STEPS = (
    JOINED
    + """
def train(step):
    meet(f"step")
    time.sleep(0.003 * (rank + 1))
    if step == 20: open(f"{sys.argv[1]}/{rank}-{os.getpid()}", "w").close()
def steps(train=train):
    for step in range(10**6):
        train(step)
        if hvd.preempted():
            print("stopped after", step, flush=True)
            sys.exit(os.EX_TEMPFAIL)
"""
)
LOOP = "steps()\n"
# Rank 1 waits for rank 0 in native code, where Python runs no signal handlers.
NATIVE = """
import ctypes, threading
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
def in_native_code(step):
    libc.pthread_mutex_lock(mutex)
    def work():
        train(step)
        libc.pthread_mutex_unlock(mutex)
    threading.Thread(target=work).start()
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_unlock(mutex)
steps(in_native_code if rank == 1 else train)
"""
CHILD = """
import multiprocessing
hvd.preempted()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
child.terminate()
child.join(20)
assert child.exitcode == -signal.SIGTERM, child.exitcode
steps()
"""
OWN_HANDLERS = """
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append("TERM"))
signal.signal(signal.SIGUSR1, lambda *_: got.append("USR1"))
hvd.preempted()
os.kill(os.getpid(), signal.SIGUSR1)
assert not hvd.preempted()
try:
    steps()
finally:
    assert got[:2] == ["USR1", "TERM"], got
"""
ONE_LEAVES = """
hvd.preempted()
if rank == 1:
    hvd.shutdown()
else:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGUSR1)
    while not sys.modules["sirtaki.job.rank.preemption"]._watch.noticed: time.sleep(0.01)
    assert not hvd.preempted() and not hvd.preempted()
    hvd.shutdown()
    print("ended", signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, flush=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    return path


def pids(names: list[str]) -> list[int]:
    """Of the ranks, in their order."""
    return [int(name.partition("-")[2]) for name in names]


def check(job: Running, ranks: int, after: str) -> None:
    """All ranks have stopped after the same step. The launcher does not start the job again, which can be resumed."""
    output, error = job.process.communicate(timeout=30)
    assert job.process.returncode == os.EX_TEMPFAIL, error
    said = output.decode().splitlines()
    assert len(said) == ranks and len({line.split(maxsplit=1)[1] for line in said}) == 1, (said, error)
    last = error.decode().splitlines()[-1]
    assert last == f"sirtakirun: the job has stopped after {after}, to be started again (exit code 75)", error
    job.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_signal_to_the_launcher(number: signal.Signals, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "3", "--restarts", "1", *written(tmp_path, LOOP, STEPS), str(here)) as job:
        job.wait_for(here, 3)
        job.process.send_signal(number)
        check(job, 3, number.name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=lambda number: number.name)
def test_signal_to_one_rank(number: signal.Signals, here: Path, tmp_path: Path) -> None:
    """A child that the program has forked died of SIGTERM before, as usual, and no rank took that for its own."""
    with running(tmp_path, "-np", "3", *written(tmp_path, CHILD, STEPS), str(here)) as job:
        os.kill(pids(job.wait_for(here, 3))[2], number)
        check(job, 3, number.name)


def test_signal_to_all_processes(here: Path, tmp_path: Path) -> None:
    """As a scheduler sends it to each process of a step, but for the launcher."""
    with running(tmp_path, "-np", "2", *written(tmp_path, LOOP, STEPS), str(here)) as job:
        job.wait_for(here, 2)
        for process in job.processes() - {job.process.pid}:
            os.kill(process, signal.SIGUSR1)
        check(job, 2, "SIGUSR1")


def test_a_rank_that_waits_in_native_code(here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *written(tmp_path, NATIVE, STEPS), str(here)) as job:
        job.wait_for(here, 2)
        job.process.send_signal(signal.SIGUSR1)
        check(job, 2, "SIGUSR1")


def test_own_handlers(here: Path, tmp_path: Path) -> None:
    """They are called, and one for SIGUSR1 keeps its meaning."""
    with running(tmp_path, "-np", "2", *written(tmp_path, OWN_HANDLERS, STEPS), str(here)) as job:
        job.wait_for(here, 2)
        job.process.send_signal(signal.SIGTERM)
        check(job, 2, "SIGTERM")


def test_without_sirtakirun_each_rank_gets_the_signal(here: Path, tmp_path: Path) -> None:
    words = ["mpiexec", "-n", "2", *written(tmp_path, LOOP, STEPS), str(here)]
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for pid in pids(Running(process, "", tmp_path).wait_for(here, 2)):
        os.kill(pid, signal.SIGUSR1)
    output, error = process.communicate(timeout=30)
    assert process.returncode == os.EX_TEMPFAIL, error
    first, second = output.decode().splitlines()
    assert first == second and first.startswith("stopped after ")


def test_a_signal_after_another_rank_has_left(tmp_path: Path) -> None:
    done = run("-np", "2", *written(tmp_path, ONE_LEAVES))
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"[0] ended True\n"


def test_a_failed_job_does_not_wait_for_a_rank_that_computes(tmp_path: Path) -> None:
    """Its SIGTERM comes from the launcher, and is no preemption."""
    code = "hvd.preempted()\nmeet('second')\nif rank: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)\n"
    done = run("-np", "2", "--grace-seconds", "1000", *written(tmp_path, code))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert b"rank 1 on host" in done.stderr.splitlines()[-1]


def test_calls_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIRTAKI_CONTROL", "sockets")  # MPI would stay loaded for all other tests
    assert "sirtaki" in sys.modules
    with pytest.raises(ValueError, match="init"):
        hvd.preempted()
    refused = []
    hvd.init()

    def call() -> None:
        try:
            hvd.preempted()
        except ValueError as error:
            refused.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert refused == ["the first call of preempted() must come from the main thread, which handles signals"]
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    assert not hvd.preempted()
    hvd.shutdown()
    assert preemption._watch is None
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
