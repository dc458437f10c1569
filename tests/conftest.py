"""What a whole run of pytest leaves behind: nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

_SHARED_MEMORY = Path("/dev/shm")
_began = time.time()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Removes MPICH's segments of ranks that tests have killed inside MPI_Init, where nobody else can.

    Two looks a second apart: a job of somebody else may have made one, and be about to map it.
    """
    if "SIRTAKI_TEST_WORKER" in os.environ:  # pytest of one rank, whose job goes on
        return
    if unused := _unused():
        time.sleep(1)
        for path in unused & _unused():
            path.unlink(missing_ok=True)


def _unused() -> set[Path]:
    """Those that were made since this run began and that no process maps."""
    made = {path for path in _SHARED_MEMORY.glob("mpich_*") if _is_new(path)}
    if not made:
        return set()
    mapped = "".join(map(_maps, Path("/proc").glob("[0-9]*/maps")))
    return {path for path in made if str(path) not in mapped}


def _is_new(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and status.st_ctime >= _began


def _maps(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
