"""A whole run of pytest: which tests run side by side, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

_SHARED_MEMORY = Path("/dev/shm")
_began = time.time()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files to each worker. One worker gets all tests that share jobs of several ranks, which compute; so the
    others run tests that mostly wait. Tests on several hosts stay together, for they share the hosts.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, name = nodeid.partition("::")
            if re.search(r"\[\d+ranks\b", name):
                return "ranks"
            return "hosts" if file.startswith("tests/hosts/") else file

    return ByFile(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Removes MPICH's segments of ranks that tests have killed inside MPI_Init, where nobody else can.

    Two looks a second apart: a job of somebody else may have made one, and be about to map it.
    """
    # Pytest of one rank, whose job goes on, or one worker of several.
    if "SIRTAKI_TEST_WORKER" in os.environ or hasattr(session.config, "workerinput"):
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
