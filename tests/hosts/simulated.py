"""What tests do with simulated hosts: run jobs on all three, and look for what is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jobs
import launching
from launching import Running
from namespaces import Namespaces
from stand_ins import StandIns

# Every program of these tests begins with this: what most need of a collective is that ranks meet in it.
START = """import os, signal, sys, time, sirtaki as hvd
from sirtaki.native import core
def meet(name):
    core.submit(core.VERBS["barrier"], name, [], site=f"program.py:{sys._getframe(1).f_lineno}").wait()
hvd.init()
rank = hvd.rank()
"""
# Without the engine, for what is the launcher's alone.
PLAIN = launching.RANK + "import signal\n"
# A rank says that it has come so far.
READY = "open(f'{sys.argv[1]}/{rank}', 'w').close()\n"
_TO_END = 10.0  # seconds after which nothing of a job may live


class Hosts:
    """machine: what makes the hosts. folder: the test's own."""

    def __init__(self, machine: Namespaces | StandIns, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.dies_inside_mpi_init = False  # then MPICH leaves its segment
        self.there = folder / "there"
        self.there.mkdir()

    def flags(self, slots: str = "n1:1,n2:1,n3:1", ranks: int = 3) -> list[str]:
        return ["-np", str(ranks), "-H", slots, *self.machine.flags]

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
        """sirtakirun on the first host, to its end."""
        return launching.run(*arguments, enter=self.machine.enter("n1"), **(self.machine.environment() | extra))

    def run_program(
        self, body: str, *flags: str, start: str = START, **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        """One rank of the program on each host; its first argument is `there`."""
        return self.run(*self.flags(), *flags, *self.program(body, start), **extra)

    def program(self, body: str, start: str = START) -> list[str]:
        (self.folder / "program.py").write_text(start + body)
        isolated = ["-S"] if start == PLAIN else []
        return [sys.executable, *isolated, str(self.folder / "program.py"), str(self.there)]

    @contextmanager
    def running(self, body: str, *flags: str, start: str = START, **extra: str) -> Iterator[Running]:
        """The same, under way."""
        words = (*self.flags(), *flags, *self.program(body, start))
        enter = self.machine.enter("n1")
        with launching.running(self.folder, *words, enter=enter, **(self.machine.environment() | extra)) as job:
            yield job

    def run_by_mpiexec(self, slots: str, ranks: int, *program: str) -> subprocess.CompletedProcess[bytes]:
        """mpiexec on the first host, without our launcher there or elsewhere."""
        mpiexec, *count = jobs.command(ranks, [])
        where = ["-hosts", slots] + (["-iface", "lo"] if self.machine.kind == "stand-ins" else [])
        environ = jobs.environment({**self.machine.environment(), "PYTHONPATH": str(launching.FRAMEWORKS)})
        environ.pop("SIRTAKI_HOSTNAME", None)
        words = [*self.machine.enter("n1"), mpiexec, *where, *count, *program]
        return subprocess.run(words, env=environ, capture_output=True, timeout=launching.SECONDS)

    def left(self) -> dict[str, list[str]]:
        """The command lines of what runs on the hosts."""
        found: dict[str, list[str]] = {}
        for name in self.machine.names:
            for pid in self.machine.processes(name):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                found.setdefault(name, []).append(f"{pid}: {words}")
        return found

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + _TO_END
        while left := self.left():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


def report(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stdout + done.stderr).decode(errors="replace")


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip().splitlines()[-1]
