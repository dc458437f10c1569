"""The ways to start ranks: one class for each, all in STARTERS.

The library, the launcher and the supervisor beside each rank use this package. So it imports only the standard library,
and no package above it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

from sirtaki.starters import inherited_socket
from sirtaki.starters.alone import Alone
from sirtaki.starters.hydra import Hydra
from sirtaki.starters.openmpi import OpenMpi, OpenMpi5
from sirtaki.starters.own import Own
from sirtaki.starters.srun import Srun
from sirtaki.starters.starter import Starter, is_number, largest

ALONE = Alone()
OWN = Own()
# The first that finds a rank is used. An MPI's starter may run inside a Slurm step and inherit Slurm's variables.
STARTERS: tuple[Starter, ...] = (OpenMpi(), OpenMpi5(), Hydra(), OWN, Srun(), ALONE)

# The scheduler or the host sets these for each rank; the launcher's values are ignored.
_PREFIXES_OF_HOSTS = (
    *("PALS_", "FLUX_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("SIRTAKI_HOSTNAME", "HOROVOD_HOSTNAME"),
)
PREFIXES = tuple(prefix for starter in STARTERS for prefix in starter.prefixes) + _PREFIXES_OF_HOSTS
# Set by the supervisor beside each rank to its own started_as().
STARTED_AS = "SIRTAKI_STARTED_AS"
RANK_VARIABLES = tuple(dict.fromkeys(name for starter in STARTERS for name in starter.rank_variables))


def announced_size(environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """(variable, number of ranks) of the starter that announces most ranks; ("", 0) if none does."""
    return largest(starter.size(environ) for starter in STARTERS)


def announced_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank according to its starter; None without one."""
    return next((rank for starter in STARTERS if (rank := starter.rank(environ)) is not None), None)


def announced_local_size(environ: Mapping[str, str] = os.environ) -> int:
    """Number of ranks on this host according to the starter; 0 if unknown."""
    return next((size for starter in STARTERS if (size := starter.local_size(environ))), 0)


def announced_local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's local rank according to the starter; None if unknown."""
    return next((rank for starter in STARTERS if (rank := starter.local_rank(environ)) is not None), None)


def descriptor(environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """(variable, descriptor in it) of MPI's socket to its starter; ("", -1) if there is none."""
    names = (starter.descriptor_variable for starter in STARTERS)
    return next(((name, int(environ[name])) for name in names if name and is_number(environ, name)), ("", -1))


def job(environ: Mapping[str, str] = os.environ) -> str:
    """Identifies this process's job among the jobs of its host; "" if its starter does not."""
    return next((name for starter in STARTERS if (name := starter.job(environ))), "")


def started_as(environ: Mapping[str, str] = os.environ) -> str:
    """Differs if another starter, called inside a rank, has started this process; "" if unknown."""
    variable, number = descriptor(environ)
    return inherited_socket.identity(number) if variable and inherited_socket.peer(number) is not None else job(environ)


def variable_of_other_mpi(version: Callable[[], str], environ: Mapping[str, str] = os.environ) -> str:
    """The variable by which the starter of another MPI announces several ranks; "" if there is none.

    version: returns the version text of the library in use.
    """
    found = [starter.size(environ)[0] for starter in STARTERS if starter.is_stranger_to(version, environ)]
    return found[0] if found else ""


def allocated_hosts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The hosts of a scheduler's allocation; empty outside one."""
    return next((hosts for starter in STARTERS if (hosts := starter.allocated_hosts(environ))), [])


def advice_on(variable: str) -> str:
    """What to do if the starter that set this variable announced more ranks than MPI sees."""
    owner = next((starter for starter in STARTERS if variable.startswith(starter.prefixes)), ALONE)
    return owner.advice


def without_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that make this process part of a job; for a job started inside it."""
    return {n: v for n, v in environ.items() if not any(starter.is_identity(n, environ) for starter in STARTERS)}


@functools.cache
def identify(program: str) -> tuple[Starter | None, str]:
    """(the starter of this program, one line about it); None for a program that no starter class recognises."""
    import subprocess

    try:
        done = subprocess.run([program, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    text = (done.stdout + done.stderr).decode(errors="replace").strip()
    for starter in STARTERS:
        if starter.is_program(text):
            return starter, starter.described(text)
    return None, text.partition("\n")[0] or f"exit code {done.returncode} and no text"


def of_library(path: str) -> tuple[Starter, ...]:
    """The starters that can start ranks of this MPI library.

    All starters if the file has the MPI standard's own name, which several MPIs share.
    """
    owners = tuple(starter for starter in STARTERS if starter.owns_library(path))
    return owners or tuple(starter for starter in STARTERS if starter.libraries)
