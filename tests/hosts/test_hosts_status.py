"""How a job on three hosts stands, asked from the launcher's host and from a rank on another (C76)."""

import os
import re
import signal
import subprocess
from pathlib import Path

import launching
from simulated import Hosts

STANDS = """
meet("first")
open(f"{sys.argv[1]}/{rank}", "w").close()
if rank == 1:
    def save():
        time.sleep(60)
    save()
if rank == 2:
    def compute():
        while True: pass
    compute()
meet("second")
"""


def test_job_status(hosts: Hosts) -> None:
    """By `sirtakirun status`, by SIGUSR1 to the launcher and to a rank on n3; then with a rank that is stopped."""
    with hosts.running(STANDS) as job:
        job.wait_for(hosts.there, 3)
        _wait_for_second(hosts, job)
        _expect_status(_status(hosts, job).stdout)
        job.process.send_signal(signal.SIGUSR1)
        _expect_status(_read_status(job))
        of_rank2 = _program_on(hosts, "n3")
        os.kill(of_rank2, signal.SIGUSR1)
        _expect_status(_read_status(job))
        os.kill(of_rank2, signal.SIGSTOP)
        text = _status(hosts, job).stdout
        assert "rank 2 on host n3" in text and "it is stopped" in text and "in compute" not in text, text
        assert job.process.poll() is None
        if hosts.machine.kind == "namespaces":  # with Unix sockets of their own
            elsewhere = _status(hosts, job, "n2")
            assert elsewhere.returncode == 1 and "run the command on the host of sirtakirun" in elsewhere.stderr, (
                elsewhere
            )


def _status(hosts: Hosts, job: launching.Running, host: str = "n1") -> "subprocess.CompletedProcess[str]":
    words = [*hosts.machine.enter(host), *launching.command("status", str(job.process.pid))]
    environ = launching.environment(**hosts.machine.environment())
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)


def _wait_for_second(hosts: Hosts, job: launching.Running) -> None:
    """Rank 0 has begun to wait, and the others do what they do for ever."""
    for _ in range(100):
        text = _status(hosts, job).stdout
        if "'second' lacks" in text and "in compute" in text:
            return
    raise AssertionError(text)


def _expect_status(text: str) -> None:
    """For each rank its host, what finished last and when, what is pending since when, and its Python stack."""
    for rank, (pending, stack) in enumerate(
        [
            ("1 pending", r'program.py", line \d+, in <module>\n +meet\("second"\)'),
            ("none pending", r'program.py", line \d+, in save\n'),
            ("none pending", r'program.py", line \d+, in compute\n'),
        ]
    ):
        begin = rf"^rank {rank} on host n{rank + 1}, process \d+: collectives finished: 1, the last barrier 'first' "
        part = re.search(rf"{begin}[\d.]+ s ago; {pending}\n(?:(?!rank ).*\n)*", text, re.MULTILINE)
        assert part and re.search(stack, part[0]), text
    assert re.search(r"barrier 'second' from program.py:\d+ for [\d.]+ s: waits for other ranks", text), text
    assert re.search(r"'second' lacks ranks 1, 2 for [\d.]+ s; rank 0 reached it", text), text


def _read_status(job: launching.Running) -> str:
    """What the job says on stderr, up to the last rank's stack; without the rank that a line is from."""
    assert job.process.stderr is not None
    text = b""
    while b"in compute" not in text:
        line = job.process.stderr.readline()
        assert line, text
        text += re.sub(rb"^\[\d\] ", b"", line)
    return text.decode()


def _program_on(hosts: Hosts, host: str) -> int:
    (found,) = (pid for pid in hosts.machine.processes(host) if _words(pid)[1:2] == [str(hosts.folder / "program.py")])
    return found


def _words(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_text().split("\0")
