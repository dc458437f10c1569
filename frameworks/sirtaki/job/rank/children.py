"""Detects processes that a rank has started. They are no ranks, although they inherit the rank's environment."""

from __future__ import annotations

import multiprocessing
import os

_RANK_PROCESS = "SIRTAKI_RANK_PROCESS"  # environment variable: the id of the rank's process
_ALONE = "/alone"  # suffix of its value if there are no other ranks


def note_rank(is_alone: bool) -> None:
    """Records that this process is a rank. is_alone: the only rank, not started by a launcher."""
    os.environ[_RANK_PROCESS] = f"{os.getpid()}{_ALONE if is_alone else ''}"


def _rank_above() -> str:
    """The id of the rank's process that has started this process; "" if there is none."""
    process = os.environ.get(_RANK_PROCESS, "")
    return "" if process.removesuffix(_ALONE) == str(os.getpid()) else process


def is_rank() -> bool:
    """Whether this process may be a rank. It may not if a rank of a launcher's job has started it."""
    return not _rank_above() or _rank_above().endswith(_ALONE)


def _is_started_by_multiprocessing() -> bool:
    # A child runs the program's file before multiprocessing sets its parent.
    runs_main = getattr(multiprocessing.current_process(), "_inheriting", False)
    return runs_main or multiprocessing.parent_process() is not None


def refuse(initialized: bool) -> None:
    """RuntimeError in a process that a rank has forked or started by `multiprocessing`.

    initialized: whether this process's memory contains the rank's engine, as after a fork.
    """
    rank = _rank_above().removesuffix(_ALONE)
    if not rank:
        return
    if is_rank() and not initialized:
        return  # its own job, for example in an executor's worker
    if is_rank():
        raise RuntimeError(
            f"init() was called in process {os.getpid()}, which was forked from process {rank} after that had called "
            "init(). MPI cannot be started again in a forked process. Start it by the method spawn or forkserver, as "
            "in ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')), or fork before init()."
        )
    if initialized or _is_started_by_multiprocessing():
        raise RuntimeError(
            f"init() was called in process {os.getpid()}, which a rank (process {rank}) has started and which is no "
            "rank itself. A spawned child runs the program's file again: put code for ranks under "
            "`if __name__ == '__main__':`. Only the rank's own process calls collectives."
        )
