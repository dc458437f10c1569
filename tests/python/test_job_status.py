"""The status of a running job: by `sirtakirun status` and by SIGUSR1, and which jobs it finds."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import Running, running, written

from sirtaki.job.launcher import status
from sirtaki.launch import running_jobs, status_command

STANDS = """
open(sys.argv[1] + '/' + str(rank), 'w').close()
if rank == 1:
    import ctypes
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock
if rank == 2:
    def compute():
        while True: pass
    compute()
meet("second")
"""


def _ready(job: Running, here: Path) -> None:
    job.wait_for(here, 3)
    time.sleep(0.3)


def _expect_status(text: str) -> None:
    """C76: for each rank what finished last, what is pending since when, and where it is."""
    assert text.count("collectives finished: 1, the last barrier 'first'") == 3, text
    assert "barrier 'second' from program.py:" in text and ": waits for other ranks" in text, text
    assert "'second' lacks ranks 1, 2 for" in text, text
    assert "native code holds the interpreter's lock" in text and "in compute" in text, text
    assert text.index("rank 0 on host") < text.index("rank 1 on host") < text.index("rank 2 on host")


def test_job_status(tmp_path: Path) -> None:
    """The same from `sirtakirun status`, from SIGUSR1 to the launcher and to a rank; nothing of it ends the job."""
    here = tmp_path / "here"
    here.mkdir()
    with running(tmp_path, "-np", "3", *written(tmp_path, STANDS), str(here)) as job:
        _ready(job, here)
        command = [sys.executable, "-m", "sirtaki.launch", "status", str(job.process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"job {job.process.pid}: 3 ranks of ")
        _expect_status(done.stdout)
        job.process.send_signal(signal.SIGUSR1)
        _expect_status(_read_until(job, b"in compute"))
        (rank0,) = [p for p in job.processes() if "program.py" in " ".join(_words(p)) and _rank(p) == "0"]
        os.kill(rank0, signal.SIGUSR1)
        _expect_status(_read_until(job, b"in compute"))
        assert job.process.poll() is None


def _read_until(job: Running, words: bytes) -> str:
    """What the job says on stderr, up to a line with these words."""
    assert job.process.stderr is not None
    text = b""
    while words not in text:
        line = job.process.stderr.readline()
        assert line, text
        text += line
    return text.decode()


def test_job_status_before_the_job_has_begun(tmp_path: Path) -> None:
    """One waits in init, one has not called it, one is stopped, one has ended."""
    here = tmp_path / "here"
    here.mkdir()
    start = """import os, signal, sys, time
own = int(os.environ["PMI_RANK"])
if own == 3: sys.exit(0)
open(sys.argv[1] + "/" + str(own), "w").close()
if own == 1: time.sleep(60)
if own == 2: os.kill(os.getpid(), signal.SIGSTOP)
import sirtaki as hvd
hvd.init()
"""
    with running(tmp_path, "-np", "4", *written(tmp_path, "", start), str(here)) as job:
        job.wait_for(here, 3)
        expected = [
            "has called init(), and waits there for other ranks; it",
            "has not called init(); it is sleeping",
            "has not called init(); it is stopped",
            "rank 3 has ended, by exit code 0",
        ]
        for _ in range(100):
            command = [sys.executable, "-m", "sirtaki.launch", "status", str(job.process.pid)]
            text = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
            if all(line.find(words) >= 0 for line, words in zip(text.splitlines()[1:], expected, strict=True)):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(text)


def _words(process: int) -> list[str]:
    words = psutil.Process(process).cmdline()
    return words if len(words) == 3 else []


def _rank(process: int) -> str:
    return psutil.Process(process).environ()["PMI_RANK"]


def test_a_name_that_is_taken_keeps_no_job_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process ids come again in containers that share a network, and others can guess them."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with status.listen() as first, status.listen() as second:
        assert first.getsockname() != second.getsockname()


def test_status_without_a_job_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Only what a launcher of this user has opened is asked; without a job there is a hint."""
    monkeypatch.setattr(running_jobs, "_TABLE", str(tmp_path / "unix"))
    row = "0: 00000002 00000000 00010000 0001 01 77 "
    own, other = f"@sirtaki-status-{os.geteuid()}-1", f"@sirtaki-status-{os.geteuid() + 1}-1"
    (tmp_path / "unix").write_text(f"Num RefCount\n{row}{other}\n{row}/tmp/{own}\n{row}\n{row}{own}\n")
    assert running_jobs.names() == [own]
    assert status_command.main([]) == 1
    assert "this user has no running job on this host" in capsys.readouterr().err
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + own[1:])
        listener.listen()
        monkeypatch.setattr(running_jobs, "user_of_peer", lambda connection: (1, os.geteuid() + 1))
        assert status_command.main([]) == 1
        assert "this user has no running job on this host" in capsys.readouterr().err
