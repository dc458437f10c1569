"""The shared memory that MPICH's ranks of one host have in common: nothing of it is left however the job ends.

MPICH removes its name only when MPI is finalised, so that each job that is killed would leave some megabytes in
/dev/shm. The memory itself stays for as long as a process has it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

_INITIAL = re.compile(rb" (/dev/shm/mpich_shm_[0-9a-f]+_[0-9]+)$", re.MULTILINE)
_ANY = re.compile(rb" (/dev/shm/mpich_(?:shm|vci)_[0-9a-f]+_[0-9]+)$", re.MULTILINE)


def remove_initial_name() -> None:
    """Of what every rank of this host has found once all ranks of MPI_COMM_WORLD have initialised MPI."""
    remove_names(_mapped(os.getpid(), _INITIAL))


def held_by(pids: Iterable[int]) -> set[bytes]:
    """Paths of what these processes have."""
    return {path for pid in pids for path in _mapped(pid, _ANY)}


def remove_names(paths: Iterable[bytes]) -> None:
    """Only when nobody will look for them any more."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _mapped(pid: int, pattern: re.Pattern[bytes]) -> set[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return set(pattern.findall(file.read()))
    return set()
