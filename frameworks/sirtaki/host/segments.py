"""The shared memory of MPICH's ranks on one host. Makes sure that no file stays, however the job ends.

MPICH removes the file's name only when MPI is finalised. Each killed job would leave some megabytes in /dev/shm. The
memory itself stays as long as a process maps it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

_INITIAL = re.compile(rb" (/dev/shm/mpich_shm_[0-9a-f]+_[0-9]+)$", re.MULTILINE)
_ANY = re.compile(rb" (/dev/shm/mpich_(?:shm|vci)_[0-9a-f]+_[0-9]+)$", re.MULTILINE)


def remove_initial_name() -> None:
    """Removes the name of the segment that every rank of this host has opened, once all ranks have initialised MPI."""
    remove_names(_mapped(os.getpid(), _INITIAL))


def held_by(pids: Iterable[int]) -> set[bytes]:
    """Paths of the segments that these processes hold."""
    return {path for pid in pids for path in _mapped(pid, _ANY)}


def remove_names(paths: Iterable[bytes]) -> None:
    """Call it only when no process will look for these names any more."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _mapped(pid: int, pattern: re.Pattern[bytes]) -> set[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return set(pattern.findall(file.read()))
    return set()
