"""Jobs of real processes, over MPI and shared memory, in which one process goes wrong once, chosen by a seed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from sirtaki.libraries import mpi_library

KINDS = ("none", "killed", "stopped", "exit code", "left early", "exception", "exit code 0")
_PROGRAM = Path(__file__).with_name("rank_program.py")
TOKEN = "SIRTAKI_FAULT_RUN"  # in the environment of all processes of one run
_LIMIT = 60.0  # seconds; the engine's own limits are some seconds
_PATIENCE = 5.0  # seconds in which the last processes of a job that has ended must be gone
_QUICK = {
    "SIRTAKI_STALL_CHECK_TIME_SECONDS": "1",
    "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "3",
    "SIRTAKI_START_TIMEOUT": "20",
    "OMP_NUM_THREADS": "1",
}
# What the job must end with; mpiexec's own way to say signal 9 is 9.
_CODES = {
    "killed": {"mpiexec": 9, "sirtakirun": 137},
    "exit code": {"mpiexec": 3, "sirtakirun": 3},
    "exit code 0": {"mpiexec": 1, "sirtakirun": 1},
}
# Of outer jobs.
LAUNCHERS = ("PMI", "OMPI_", "PRTE_", "HYDRA_", "MPIR_", "SLURM_", "SIRTAKI_", "HOROVOD_")


@dataclass(frozen=True)
class Run:
    """way: "mpiexec" or "sirtakirun"; data: "shm" or "mpi". operation: the first is 0."""

    kind: str
    ranks: int
    rank: int
    operation: int
    counts: tuple[int, ...]
    steps: int
    way: str
    data: str

    @staticmethod
    def of_seed(seed: int, number: int) -> Run:
        chooser = random.Random(f"{seed} {number}")
        ranks, steps = chooser.randint(2, 4), 12
        counts = tuple(chooser.choice((1, 10, 1000, 50_000, 400_000)) for _ in range(chooser.randint(1, 4)))
        return Run(
            KINDS[number % len(KINDS)],
            ranks,
            chooser.randrange(ranks),
            chooser.randrange(steps * len(counts)),
            counts,
            steps,
            chooser.choice(("mpiexec", "sirtakirun")),
            chooser.choice(("shm", "shm", "mpi")),
        )

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank} of {self.ranks} in operation {self.operation}, {self.way}, {self.data}"


@dataclass(frozen=True)
class Outcome:
    """complaint: "" or what the run shows to be wrong. cause: the line of the output that names the cause.

    told_by: who printed that line: "ranks", "sirtakirun", or "mpiexec", which may say it of a process that it killed
    itself because of the first one; "" without a line.
    """

    seconds: float
    complaint: str
    cause: str
    told_by: str


def execute(run: Run) -> Outcome:
    token = uuid.uuid4().hex
    segments = segments_now()
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen(
            _command(run),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(run, token),
            start_new_session=True,
        )
        try:
            code: int | None = job.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - begin
        left = wait_until_gone(token)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        job.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    cause, told_by = _cause(run, text)
    return Outcome(seconds, _complaint(run, code, text, cause, left, unused(segments_now() - segments)), cause, told_by)


def _complaint(run: Run, code: int | None, text: str, cause: str, left: list[int], segments: set[str]) -> str:
    if "WRONG SUM" in text:
        return "a wrong sum"
    if code is None:
        return f"it did not end; its output: {text[-3000:]}"
    if left:
        return f"processes {left} were left"
    if segments:
        return f"{segments} were left in /dev/shm"
    if run.kind == "none":
        good = code == 0 and text.count("RIGHT SUMS") == run.ranks
        return "" if good else f"a job without a fault ended with {code}: {text[-3000:]}"
    if run.kind == "left early" and code == 0 and text.count("RIGHT SUMS") == run.ranks - 1:
        return ""  # it had asked for all that the others needed
    if code == 0:
        return f"exit code 0: {text[-3000:]}"
    if run.kind in _CODES and code != _CODES[run.kind][run.way]:
        return f"exit code {code}: {text[-3000:]}"
    return "" if cause else f"the cause was not named: {text[-3000:]}"


def _cause(run: Run, text: str) -> tuple[str, str]:
    """The line that names what happened, and to which rank or process; and who says so."""
    who = rf"rank {run.rank}\b"
    patterns = {
        "none": [],
        "killed": [rf"{who}.*(has died|signal 9)"],
        "stopped": [rf"{who} .*has not answered", rf"missing: .*{run.rank}", rf"waited .* for .*{run.rank}"],
        "exit code": [rf"{who}.*(has died|exit code 3|os._exit\(3\))"],
        "exit code 0": [rf"{who}.*left early: (exit code 0|os._exit\(0\)) without"],
        "left early": [rf"{who} left early"],
        "exception": [rf"{who}.*boom in operation {run.operation}\b"],
    }
    lines = [line.strip() for line in reversed(text.splitlines())]
    for pattern in patterns[run.kind]:
        for line in lines:
            if re.search(pattern, line):
                return line, "sirtakirun" if line.startswith("sirtakirun: ") else "ranks"
    if run.kind == "killed" and run.way == "mpiexec":  # nobody else can tell
        for line in lines:
            if line == "=   EXIT CODE: 9":
                return line, "mpiexec"
    return "", ""


def _command(run: Run) -> list[str]:
    program = [sys.executable, str(_PROGRAM)]
    if run.way == "sirtakirun":
        return [sys.executable, "-m", "sirtaki.launch", "-np", str(run.ranks), *program]
    mpiexec = mpi_library.find().mpiexec
    assert mpiexec is not None, "the MPI in use has no mpiexec"
    return [mpiexec, "-n", str(run.ranks), *program]


def _environment(run: Run, token: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS) or k == mpi_library.VARIABLE}
    fault = {key: getattr(run, key) for key in ("kind", "rank", "operation", "counts", "steps")}
    return {**kept, **_QUICK, "SIRTAKI_CPU_OPERATIONS": run.data, "FAULT": json.dumps(fault), TOKEN: token}


def wait_until_gone(token: str) -> list[int]:
    end = time.monotonic() + _PATIENCE
    while (left := _processes(token)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _processes(token: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{TOKEN}={token}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def segments_now() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("sirtaki-")}


def unused(segments: set[str]) -> set[str]:
    """Those that no process maps, so none of a job that runs beside this one."""
    maps = []
    for path in Path("/proc").glob("[0-9]*/maps") if segments else ():
        with contextlib.suppress(OSError):
            maps.append(path.read_text(errors="replace"))
    mapped = "".join(maps)
    return {name for name in segments if f"/dev/shm/{name}" not in mapped}
