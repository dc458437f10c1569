"""However a job ends, nothing of it is left: signals to the launcher, kill -9 of any part, stubborn ranks, children."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import MPIS, Running, environment, program, running

# Each rank makes a file when it is there; then it waits for ever.
WAIT = "open(sys.argv[1] + '/' + str(rank), 'w').close()\ntime.sleep(300)"
# Ignores what can be ignored.
STUBBORN = "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n" + WAIT
# A child, a grandchild that outlives its parent, and one in a session of its own.
FAMILY = """
import signal, subprocess
code = "import time; time.sleep(300)"
nothing = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen([sys.executable, "-S", "-c", code])
subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, **nothing)
orphan = f"import os, subprocess; subprocess.Popen([{sys.executable!r}, '-S', '-c', {code!r}])"
subprocess.run([sys.executable, "-S", "-c", orphan])
time.sleep(0.3)
"""
STUBBORN_FAMILY = FAMILY.replace("import time;", "import signal, time; [signal.signal(n, 1) for n in (2, 15)];")


def _start_up(job: Running, path: Path, ranks: int) -> None:
    job.wait_for(path, ranks)
    assert len(job.processes()) >= 2 * ranks + 1


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    return path


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_to_the_launcher(number: signal.Signals, mpi: str, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(WAIT, str(here)), mpi=mpi) as job:
        _start_up(job, here, 2)
        job.process.send_signal(number)
        error = job.process.communicate(timeout=20)[1]
        assert job.process.returncode == 128 + number
        assert f"ended by {number.name}".encode() in error.splitlines()[-1]
        job.assert_nothing_left()


@pytest.mark.parametrize("mpi", MPIS)
def test_kill_of_the_launcher(mpi: str, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(STUBBORN_FAMILY + STUBBORN, str(here)), mpi=mpi) as job:
        _start_up(job, here, 2)
        job.process.kill()
        job.assert_nothing_left()


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_that_ignore_signals_and_have_children(mpi: str, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(STUBBORN_FAMILY + STUBBORN, str(here)), mpi=mpi) as job:
        _start_up(job, here, 2)
        job.process.send_signal(signal.SIGINT)
        job.process.communicate(timeout=20)
        assert job.process.returncode == 130
        job.assert_nothing_left()


def test_second_ctrl_c_does_not_wait(here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(STUBBORN, str(here))) as job:
        _start_up(job, here, 2)
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(20) == 130
        job.assert_nothing_left()


def test_signal_is_forwarded_before_the_kill(here: Path, tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "def tidy(number, frame):\n    print('tidied up after', number)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, tidy)\n" + WAIT
    )
    with running(tmp_path, "-np", "2", *program(code, str(here))) as job:
        _start_up(job, here, 2)
        job.process.send_signal(signal.SIGTERM)
        output = job.process.communicate(timeout=20)[0]
        assert sorted(output.splitlines()) == [b"[0] tidied up after 15", b"[1] tidied up after 15"]
        assert job.process.returncode == 143


@pytest.mark.parametrize("mpi", MPIS)
def test_kill_of_one_rank(mpi: str, here: Path, tmp_path: Path) -> None:
    code = "open(sys.argv[1] + '/' + str(rank) + '-' + str(os.getpid()), 'w').close()\n" + STUBBORN.rpartition("\n")[2]
    with running(tmp_path, "-np", "3", *program(FAMILY + code, str(here)), mpi=mpi) as job:
        names = job.wait_for(here, 3)
        os.kill(int(next(name for name in names if name.startswith("1-")).partition("-")[2]), signal.SIGKILL)
        error = job.process.communicate(timeout=20)[1]
        assert job.process.returncode == 137
        assert b"rank 1 on host" in error.splitlines()[-1] and b"SIGKILL" in error.splitlines()[-1]
        job.assert_nothing_left()


@pytest.mark.parametrize("victim", ["mpiexec", "outer", "inner"])
def test_kill_of_each_launcher_process(victim: str, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(FAMILY + WAIT, str(here))) as job:
        _start_up(job, here, 2)
        workers = [
            p for p in map(psutil.Process, job.processes()) if any("start_worker" in word for word in p.cmdline())
        ]
        workers = [p for p in workers if "mpiexec" not in p.cmdline()[0] and "hydra" not in p.cmdline()[0]]
        pids = {p.pid for p in workers}
        inner = next(p for p in workers if p.ppid() in pids)
        chosen = {
            "mpiexec": psutil.Process(job.process.pid).children()[0].pid,
            "outer": inner.ppid(),
            "inner": inner.pid,
        }[victim]
        os.kill(chosen, signal.SIGKILL)
        job.process.communicate(timeout=20)
        assert job.process.returncode not in (0, None)
        job.assert_nothing_left()


@pytest.mark.parametrize("mpi", MPIS)
def test_children_left_by_a_rank_that_ended_well(mpi: str, here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program(FAMILY + "print('done')"), mpi=mpi) as job:
        output = job.process.communicate(timeout=20)[0]
        assert job.process.returncode == 0
        assert sorted(output.splitlines()) == [b"[0] done", b"[1] done"]
        job.assert_nothing_left()


def test_reader_of_the_output_leaves(here: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program("for i in range(10**9): print('x' * 1000)")) as job:
        assert job.process.stdout is not None
        job.process.stdout.read(10000)
        job.process.stdout.close()
        assert job.process.wait(20) == 128 + signal.SIGPIPE
        job.assert_nothing_left()
        job.process.stdout = None


def test_ctrl_c_while_nobody_reads_the_output(here: Path, tmp_path: Path) -> None:
    code = WAIT.partition("\n")[0] + "\nfor i in range(10**9): print('x' * 1000)"
    with running(tmp_path, "-np", "2", *program(code, str(here))) as job:
        job.wait_for(here, 2)
        time.sleep(1)  # pipes and buffers fill
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(20) == 130
        job.assert_nothing_left()


def test_ranks_that_do_not_start_in_time(tmp_path: Path) -> None:
    mpiexec = tmp_path / "bin" / "mpiexec"
    mpiexec.parent.mkdir()
    mpiexec.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "HYDRA build details:"; echo "Version: 9"; exit; fi\n'
        'while [ "$1" != none ]; do shift; done; shift\n'
        'PMI_RANK=0 PMI_SIZE=2 "$@" &\nsleep 300\n'
    )
    mpiexec.chmod(0o755)
    library = tmp_path / "lib" / "libmpi.so.12"
    library.parent.mkdir()
    library.touch()
    words = ("-np", "2", "--start-timeout", "2", *program("time.sleep(300)"))
    with running(tmp_path, *words, mpi=str(library)) as job:
        error = job.process.communicate(timeout=20)[1]
        assert job.process.returncode != 0
        assert b"1 of 2 ranks arrived within 2 s, missing: rank 1" in error
        job.assert_nothing_left()


def test_signal_before_the_job_has_begun(tmp_path: Path) -> None:
    """As while names of hosts are looked up: the directory with the job's secret goes; how it stands ends nothing."""
    code = """if True:
        import sys, time
        from sirtaki.launch import command
        from sirtaki.job.protocol import private_directory
        def listen(*rest):
            print(flush=True)
            time.sleep(60)
        private_directory.listen = listen
        sys.exit(command.main(["-np", "1", "true"]))
    """
    environ = environment(TMPDIR=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n" and os.listdir(tmp_path)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []
