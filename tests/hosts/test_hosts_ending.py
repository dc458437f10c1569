"""However a job on three hosts is ended, nothing of it is left: signals, kill -9 of any part, a host that dies."""

import os
import signal
import sys
from pathlib import Path

import pytest
from simulated import PLAIN, READY, Hosts

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


WARNED = """
got = []
for number in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, lambda number, frame: got.append(number))
"""


def test_warning_to_the_launcher(hosts: Hosts) -> None:
    """C88: the handlers run on every host. The helpers live when a scheduler signals all processes, and add nothing."""
    body = WARNED + READY + "while signal.SIGUSR1 not in got: time.sleep(0.02)\n"
    body += "open(f'{sys.argv[1]}/{rank}-once', 'w').close()\nwhile signal.SIGUSR2 not in got: time.sleep(0.02)\n"
    body += "time.sleep(2)\nprint('warned', len(got), flush=True)\n"
    with hosts.running(body, start=PLAIN) as job:
        job.wait_for(hosts.there, 3)
        job.process.send_signal(signal.SIGUSR1)
        job.wait_for(hosts.there, 6)
        for name in hosts.machine.names:
            for pid in hosts.machine.processes(name):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[0].startswith(os.fsencode(sys.executable)):  # not the shell of sshd, which is in no step
                    os.kill(pid, signal.SIGUSR2)
        output, error = job.process.communicate(timeout=30)
        assert job.process.returncode == 0, error
        assert sorted(output.decode().splitlines()) == [f"[{rank}] warned 2" for rank in range(3)]


def test_kill_of_one_rank(hosts: Hosts) -> None:
    """C57: kill -9 of one, while all have children and ignore what can be ignored."""
    body = "open(f'{sys.argv[1]}/{rank}-{os.getpid()}', 'w').close()\ntime.sleep(300)\n"
    with hosts.running(STUBBORN + body, start=PLAIN) as job:
        (victim,) = (name[2:] for name in job.wait_for(hosts.there, 3) if name.startswith("1-"))
        os.kill(int(victim), signal.SIGKILL)
        error = job.process.communicate(timeout=20)[1].decode()
        assert job.process.returncode == 137, error
        assert "rank 1 on host n2 failed first: killed by signal 9, SIGKILL" in error.splitlines()[-1], error
        job.assert_nothing_left()
        hosts.assert_nothing_left()


@pytest.mark.parametrize("victim", ["start_agent.py", "hydra_pmi_proxy", "remote_shell.py", "start_worker.py"])
def test_kill_of_each_launcher_process(victim: str, either: Hosts) -> None:
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
