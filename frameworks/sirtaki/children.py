"""A process that a rank starts is no rank itself, though it inherits what the launcher told the rank."""

from __future__ import annotations

import multiprocessing
import os

_RANK_PROCESS = "SIRTAKI_RANK_PROCESS"  # in the environment: the process that is the rank


def note_rank() -> None:
    """This process is a rank from now on."""
    os.environ[_RANK_PROCESS] = str(os.getpid())


def is_rank() -> bool:
    """Whether this process may be a rank: it is none if it was started by one."""
    return os.environ.get(_RANK_PROCESS, "") in ("", str(os.getpid()))


def _is_started_by_multiprocessing() -> bool:
    # Before it has a parent, a child runs the program's file.
    runs_main = getattr(multiprocessing.current_process(), "_inheriting", False)
    return runs_main or multiprocessing.parent_process() is not None


def refuse(initialized: bool) -> None:
    """RuntimeError in a process that a rank has forked or started by `multiprocessing`.

    initialized: whether the engine of the rank is in this process's memory, as after a fork.
    """
    rank = os.environ.get(_RANK_PROCESS)
    if rank is None or rank == str(os.getpid()):
        return
    if initialized or _is_started_by_multiprocessing():
        raise RuntimeError(
            f"init() was called in process {os.getpid()}, which a rank (process {rank}) has started and which is no "
            "rank itself. A child that is spawned runs the program's file again: put what only ranks do under "
            "`if __name__ == '__main__':`. Collectives are called by the rank's own process alone."
        )
