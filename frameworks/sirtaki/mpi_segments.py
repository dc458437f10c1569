"""The shared memory that MPICH's ranks of one host have in common: nothing of it is left however the job ends."""

from __future__ import annotations

import contextlib
import os
import re

_MAPPED = re.compile(r" (/dev/shm/mpich_shm_[0-9a-f]+_[0-9]+)(?: \(deleted\))?$", re.MULTILINE)


def remove_names() -> None:
    """To be called when all ranks of MPI_COMM_WORLD have initialised MPI, and with that have found the segment.

    MPICH removes its name only when MPI is finalised, so that each job that is killed would leave some megabytes in
    /dev/shm. The memory itself stays for as long as a process has it.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for path in set(_MAPPED.findall(file.read())):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
