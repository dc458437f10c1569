"""Starts processes under the mpiexec of the MPI in use, with a limit on time, and kills what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sirtaki.libraries import mpi_library

# What an outer launcher may have left in the environment would confuse the inner one.
_LAUNCHER_PREFIXES = ("PMI", "OMPI_", "PRTE_", "HYDRA_", "MPIR_", "MPI_", "SLURM_", "MV2_", "SIRTAKI_", "HOROVOD_")
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    # Open MPI, if that is the one: more ranks than cores, and root in containers.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

# A shell between the starter and a rank's process. So the starter does not notice its death for 3 s and ends no rank.
UNNOTICED = ("sh", "-c", '"$@"; code=$?; sleep 3; exit $code', "sh")


@dataclass(frozen=True)
class Ended:
    """A job that is over. code: None if it had to be killed. output: stdout and stderr of all ranks."""

    code: int | None
    output: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without launchers' variables, with the settings of a test job."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_PREFIXES) or k == mpi_library.VARIABLE}
    return {**kept, **_SETTINGS, **(extra or {})}


def command(count: int, program: Sequence[str]) -> list[str]:
    """The command line that starts `count` ranks of a program."""
    mpiexec = mpi_library.find().mpiexec
    assert mpiexec is not None, "the MPI in use has no mpiexec"
    return [mpiexec, "-n", str(count), *program]


def start(count: int, program: Sequence[str], output: Path, extra: Mapping[str, str] | None = None) -> subprocess.Popen:
    """Starts a job in a process group of its own; its output goes to a file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command(count, program),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(extra),
            start_new_session=True,
        )


def kill(job: subprocess.Popen) -> None:
    """Ends a job with all its processes, politely first, so that the launcher can stop the ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(5)
            return


def run_script(
    count: int,
    source: str,
    limit: float = 60,
    extra: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
) -> Ended:
    """Runs a Python program on `count` ranks; killed after `limit` seconds (code None). through: starts each rank."""
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder, "program.py"), Path(folder, "output")
        script.write_text(textwrap.dedent(source))
        job = start(count, [*through, sys.executable, str(script)], output, extra)
        try:
            code = job.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill(job)
        return Ended(code, output.read_text(errors="replace"))
