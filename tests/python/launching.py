"""What the launcher's tests share: starting sirtakirun as a user would, and looking for what a job leaves behind."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

if importlib.util.find_spec("sirtaki") is None:  # not installed: from the sources beside these tests
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "frameworks"))
FRAMEWORKS = Path(importlib.import_module("sirtaki.launch").__file__ or "").parents[2]
SECONDS = 60  # no launch of these tests takes longer unless it hangs
_MARK = "SIRTAKI_TEST_JOB"
_FOREIGN = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "HYDI_", "SIRTAKI_", "HOROVOD_", "OMP_", "TF_NUM_")

# Every program of these tests begins with this line.
RANK = "import os, sys, time; rank = int(os.environ.get('PMI_RANK') or os.environ.get('OMPI_COMM_WORLD_RANK') or 0)\n"

# And every one that calls init() with this.
JOINED = """import os, signal, sys, time, sirtaki as hvd
from sirtaki.native import core
def meet(name):
    core.submit(core.VERBS["barrier"], name, [], site=f"program.py:{sys._getframe(1).f_lineno}").wait()
hvd.init()
rank = hvd.rank()
meet("first")
"""

MPIS = [
    pytest.param("", id="own"),
    pytest.param(
        "openmpi",
        id="openmpi",
        marks=pytest.mark.skipif(
            not shutil.which("mpiexec.openmpi"), reason="Open MPI (mpiexec.openmpi) not installed"
        ),
    ),
]

ALL_MPIS = [
    *MPIS,
    pytest.param(
        "mpich",
        id="mpich",
        marks=pytest.mark.skipif(
            not shutil.which("mpiexec.mpich"), reason="the system's MPICH (mpiexec.mpich) not installed"
        ),
    ),
]


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what a launcher above pytest may have set, and with Sirtaki importable."""
    result = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FRAMEWORKS), result.get("PYTHONPATH")]))
    return {**result, **extra}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sirtaki.launch", *arguments]


def program(code: str, *arguments: str) -> list[str]:
    """A program for the ranks: Python code that knows its `rank`."""
    return [sys.executable, "-S", "-c", RANK + code, *arguments]


def written(path: Path, body: str, start: str = JOINED) -> list[str]:
    """A program for the ranks, in a file of that folder."""
    script = path / "program.py"
    script.write_text(start + body)
    return [sys.executable, str(script)]


def run(
    *arguments: str, mpi: str = "", enter: Sequence[str] = (), **extra: str
) -> "subprocess.CompletedProcess[bytes]":
    """Runs sirtakirun to its end; output as bytes. enter: words in front of it, that put it elsewhere."""
    environ = environment(**extra, **({"SIRTAKI_MPI": mpi} if mpi else {}))
    return subprocess.run([*enter, *command(*arguments)], env=environ, capture_output=True, timeout=SECONDS)


@dataclass
class Running:
    """A job under way. Its processes, wherever in the process tree, are known by a mark in their environment."""

    process: "subprocess.Popen[bytes]"
    mark: str
    temporary: Path

    def processes(self) -> set[int]:
        """All that live now, the launcher included."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                marked = wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if marked and Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                    found.add(int(name))
            except OSError:
                continue
        return found

    def wait_for(self, path: Path, count: int) -> list[str]:
        """Waits until that many files lie in the directory: each rank makes one when it runs."""
        deadline = time.monotonic() + SECONDS
        while len(names := sorted(os.listdir(path))) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, f"only {names} started"
            time.sleep(0.02)
        return names

    def assert_nothing_left(self, seconds: float = 10) -> None:
        """Within the time, no process of the job lives and its directory is gone. A failed job leaves its records."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) or self._files():
            if time.monotonic() > deadline:
                words = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left]
                raise AssertionError(f"left behind: {words}, {self._files()}")
            time.sleep(0.05)

    def _files(self) -> list[str]:
        failed = self.process.poll() not in (0, None)
        return [n for n in os.listdir(self.temporary) if not (failed and n.startswith("sirtaki-records-"))]


@contextmanager
def running(
    tmp_path: Path, *arguments: str, mpi: str = "", enter: Sequence[str] = (), **extra: str
) -> Iterator[Running]:
    """Starts sirtakirun with a temporary directory of its own; whatever survives the test is killed."""
    mark = uuid.uuid4().hex
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    extra.setdefault("SIRTAKI_GRACE_SECONDS", "2.5")
    environ = environment(**extra, **{_MARK: mark, "TMPDIR": str(temporary)}, **({"SIRTAKI_MPI": mpi} if mpi else {}))
    words = [*enter, *command(*arguments)]
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job = Running(process, mark, temporary)
    try:
        yield job
    finally:
        for pid in job.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=SECONDS)
