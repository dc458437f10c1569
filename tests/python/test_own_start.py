"""`sirtakirun` starts ranks without MPI: they get the table of all ranks through the launcher."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from launching import command, environment, run, running, written

from sirtaki.job.protocol import channel
from sirtaki.job.protocol.spec import Spec
from sirtaki.job.supervisor.supervisor import Supervisor
from sirtaki.libraries import mpi_library

NUMBERS = """
numbers = [os.environ[name] for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")]
assert numbers == [str(n) for n in (rank, 3, rank, 3)], numbers
assert not hvd.mpi_enabled() and hvd.local_rank() == rank and hvd.size() == 3
hvd.shutdown()
hvd.init()
meet("again")
print(hvd.rank(), hvd.size(), flush=True)
if rank == 1:
    import subprocess
    print(subprocess.run([*sys.argv[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout, end="")
meet("last")
"""


def test_ranks_find_each_other_again_and_may_start_a_job_of_their_own(tmp_path: Path) -> None:
    code = "import sirtaki as hvd; hvd.init(); print('inner', hvd.rank(), hvd.size())"
    inner = command("-np", "2", "--gloo", sys.executable, "-c", code)
    with running(tmp_path, "-np", "3", "--gloo", *written(tmp_path, NUMBERS), *inner) as job:
        out, error = job.process.communicate(timeout=60)
        assert job.process.returncode == 0, error.decode()
        job.assert_nothing_left()
    lines = sorted(line.decode() for line in out.splitlines())
    assert lines == ["[0] 0 3", "[1] 1 3", "[1] [0] inner 0 2", "[1] [1] inner 1 2", "[2] 2 3"]


def test_a_killed_rank_ends_the_job_with_its_name(tmp_path: Path) -> None:
    body = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nmeet('second')\n"
    with running(tmp_path, "-np", "2", *written(tmp_path, body), SIRTAKI_CONTROL="sockets") as job:
        _, error = job.process.communicate(timeout=60)
        assert job.process.returncode == 137
        assert error.splitlines()[-1].startswith(b"sirtakirun: rank 1 on host ")
        assert b" failed first: killed by signal 9" in error.splitlines()[-1]
        job.assert_nothing_left()


def test_a_rank_that_does_not_call_init_is_named(tmp_path: Path) -> None:
    late = "import os, time\nif os.environ['HOROVOD_RANK'] == '1': time.sleep(60)\nimport sirtaki as hvd\nhvd.init()\n"
    done = run("-np", "2", "--gloo", "--start-timeout", "2", "--grace-seconds", "0", *written(tmp_path, late, ""))
    text = "1 of 2 ranks arrived within 2 s (SIRTAKI_START_TIMEOUT), missing: rank 1, which did not call init()"
    assert done.returncode == 1 and f"[0] ended in init() by SirtakiInternalError: {text}\n" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert f"missing first: {text}" in done.stderr.decode().splitlines()[-1]


def test_an_mpiexec_inside_a_rank_starts_a_job_of_its_own(tmp_path: Path) -> None:
    said = "f'{hvd.rank()} {hvd.size()} {hvd.mpi_enabled()}\\n'.encode()"
    code = f"import os, sirtaki as hvd; hvd.init(); os.write(1, {said})"
    done = run("-np", "1", "--gloo", *command("-np", "2", sys.executable, "-c", code))
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 2 True", b"[1] 1 2 True"], done.stderr.decode()
    done = run("-np", "1", "--gloo", str(mpi_library.find().mpiexec), "-n", "2", sys.executable, "-c", code)
    assert sorted(done.stdout.splitlines()) == [b"0 2 True", b"1 2 True"], done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "extra", "message"),
    [
        (["--gloo", "--launcher", "mpiexec"], {}, "--launcher mpiexec starts ranks that use MPI, but this job does"),
        ([], {"SIRTAKI_CONTROL": "gloo"}, "SIRTAKI_CONTROL='gloo': expected mpi or sockets"),
    ],
)
def test_contradictions_are_refused(words: list[str], extra: dict[str, str], message: str) -> None:
    done = run("-np", "2", *words, "true", **extra)
    assert done.returncode == 2 and message in done.stderr.decode()


def test_a_dry_run_shows_how_the_ranks_would_start() -> None:
    done = run("-np", "2", "--gloo", "--dry-run", "true")
    assert done.returncode == 0
    assert "job/supervisor/start_worker.py" in done.stdout.decode() and "mpiexec" not in done.stdout.decode()


def test_no_mpi_is_needed_where_none_is_installed(tmp_path: Path) -> None:
    """As in a fresh environment without the wheel of MPICH."""
    body = "assert not hvd.mpi_enabled(); print(hvd.size())"
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sirtaki.libraries.mpi_library':\n"
        "            import importlib.machinery as m\n"
        "            spec = m.PathFinder.find_spec(name, path)\n"
        "            load = spec.loader.exec_module\n"
        "            def exec_module(module):\n"
        "                load(module)\n"
        "                def find(*_): raise module.MpiNotFoundError('none')\n"
        "                module.candidates, module.find = (lambda *_: []), find\n"
        "            spec.loader.exec_module = exec_module\n"
        "            return spec\n"
        "import sys\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    path = os.pathsep.join([str(hidden), environment()["PYTHONPATH"]])
    done = run("-np", "2", *written(tmp_path, body), PYTHONPATH=path)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == [b"[0] 2", b"[1] 2"], done.stderr.decode()


def test_a_cause_does_not_reach_a_rank_that_has_left_its_generation() -> None:
    """It may come between the end of one connection of the rank and the first message of the next."""
    launcher, ours = socket.socketpair()
    outer, _ = pipe = os.pipe()
    supervisor = Supervisor(Spec(size=2, command=[], environ={}, cwd=b""), 0, ours, outer)
    line = supervisor._line

    def rank() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect("\0" + line.name)
        connection.setblocking(False)
        line._accept(line._listener, 0)
        return connection

    def fail() -> None:
        cause = {"kind": "killed", "rank": 1, "host": "a", "time": 0.0, "site": "", "text": "gone", "generation": 1}
        supervisor._on_frame(channel.FAIL, json.dumps(cause).encode())

    first = rank()
    first.send(b"J" + json.dumps({"process": os.getpid(), "limit": 1}).encode())
    line.drain()
    supervisor._on_frame(channel.TABLE, json.dumps({"generation": 1, "nonce": "00"}).encode())
    fail()
    assert [first.recv(1000)[:1], first.recv(1000)[:1]] == [b"G", b"F"]
    first.send(b"L")
    first.close()
    second = rank()
    fail()
    with pytest.raises(BlockingIOError):
        second.recv(1000)
    for each in (launcher, ours, second, line._listener):
        each.close()
    for descriptor in pipe:
        os.close(descriptor)
