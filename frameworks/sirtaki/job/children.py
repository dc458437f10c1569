"""A process that a rank starts is no rank itself, though it inherits what the launcher told the rank."""

from __future__ import annotations

import multiprocessing
import os

_RANK_PROCESS = "SIRTAKI_RANK_PROCESS"  # in the environment: the process that is the rank
_ALONE = "/alone"  # after it, if there are no others


def note_rank(is_alone: bool) -> None:
    """This process is a rank from now on. is_alone: the only one, and no launcher has started it."""
    os.environ[_RANK_PROCESS] = f"{os.getpid()}{_ALONE if is_alone else ''}"


def _rank_above() -> str:
    """The rank that has started this process and is another one; "" if there is none."""
    process = os.environ.get(_RANK_PROCESS, "")
    return "" if process.removesuffix(_ALONE) == str(os.getpid()) else process


def is_rank() -> bool:
    """Whether this process may be a rank: it is none if it was started by one that belongs to a launcher's job."""
    return not _rank_above() or _rank_above().endswith(_ALONE)


def _is_started_by_multiprocessing() -> bool:
    # Before it has a parent, a child runs the program's file.
    runs_main = getattr(multiprocessing.current_process(), "_inheriting", False)
    return runs_main or multiprocessing.parent_process() is not None


def refuse(initialized: bool) -> None:
    """RuntimeError in a process that a rank has forked or started by `multiprocessing`.

    initialized: whether the engine of the rank is in this process's memory, as after a fork.
    """
    rank = _rank_above().removesuffix(_ALONE)
    if not rank:
        return
    if is_rank() and not initialized:
        return  # a job of its own, as of an executor's worker
    if is_rank():
        raise RuntimeError(
            f"init() was called in process {os.getpid()}, which was forked from process {rank} after that had called "
            "init(). MPI cannot be started again in a forked process. Start it by the method spawn or forkserver, as "
            "in ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')), or fork before init()."
        )
    if initialized or _is_started_by_multiprocessing():
        raise RuntimeError(
            f"init() was called in process {os.getpid()}, which a rank (process {rank}) has started and which is no "
            "rank itself. A child that is spawned runs the program's file again: put what only ranks do under "
            "`if __name__ == '__main__':`. Collectives are called by the rank's own process alone."
        )
