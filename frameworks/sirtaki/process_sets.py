"""Process sets: groups of ranks with collectives of their own. All frameworks of a process share them."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from sirtaki import settings
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.exchange import allgather_bytes, start_transfer
from sirtaki.native import core

GLOBAL_ID = 0
MEMBERS_TAG = 2**31 - 1  # of the messages by which members agree; the public functions refuse this tag
_dynamic = False  # whether init allowed process sets to change
_last_of_members = 0  # the last id of a set that this rank made with its members alone
_changing = threading.Lock()  # threads of two ranks could make two sets in different orders, and wait for each other
_bound: weakref.WeakSet[ProcessSet] = weakref.WeakSet()
_registered: list[tuple[ProcessSet, str]] = []  # on all ranks, in their order; "init" or "add": by which call
_kept: list[tuple[ProcessSet, str]] = []  # for the next init() of an elastic job


class ProcessSet:
    """A group of ranks, made from global ranks or from an mpi4py communicator.

    Register it before use, by init(process_sets=[...]) or add_process_set(). ValueError for any other argument.

    >>> everyone = hvd.global_process_set
    >>> everyone.size(), everyone.rank(), everyone.included()
    (1, 0, True)
    >>> hvd.ProcessSet([2, 0]).ranks  # not registered yet
    [0, 2]
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = checked_ranks(ranks_or_comm)

    def size(self) -> int | None:
        """Number of ranks; None while unregistered. ValueError if the set was removed."""
        if self.process_set_id is None:
            return None
        return len(_known_ranks(self.process_set_id))

    def rank(self) -> int | None:
        """This process's rank within the set, None while unregistered; ValueError if it is not a member."""
        if self.process_set_id is None:
            return None
        ranks = _known_ranks(self.process_set_id)
        if core.rank() not in ranks:
            raise ValueError(f"Process is not part of provided process set: rank {core.rank()} is not in {ranks}.")
        return ranks.index(core.rank())

    def included(self) -> bool | None:
        """Whether this process is a member; None while the ranks are unknown."""
        return None if self.ranks is None else core.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        return self  # a copy would never be registered

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.process_set_id == GLOBAL_ID, self.ranks)


def _restored(is_global: bool, ranks: list[int] | None) -> ProcessSet:
    """Unpickles a set and binds it to the registered set with the same ranks, if there is one."""
    if is_global:
        return global_process_set
    restored = ProcessSet(ranks or [])
    if core.is_initialized():
        _bind(restored, _id_of(restored.ranks or []))
    return restored


def is_communicator(value: Any) -> bool:
    """True for mpi4py communicators, without importing mpi4py."""
    return any(kind.__module__ == "mpi4py.MPI" and kind.__name__ == "Comm" for kind in type(value).__mro__)


def checked_ranks(ranks: Any) -> list[int]:
    """Sorted global ranks; ValueError unless they are non-negative integers without repetition."""
    if isinstance(ranks, (str, bytes)) or not hasattr(ranks, "__iter__"):
        raise ValueError(f"a process set is made from ranks or an mpi4py communicator, got {ranks!r}")
    listed = list(ranks)
    for rank in listed:
        if isinstance(rank, bool) or not hasattr(rank, "__index__") or rank.__index__() < 0:
            raise ValueError(f"ranks of a process set must be integers from 0, got {rank!r} in {listed!r}")
    result = sorted(rank.__index__() for rank in listed)
    if len(set(result)) != len(result):
        raise ValueError(f"ranks of a process set must differ, got {listed!r}")
    return result


def _global() -> ProcessSet:
    everyone = ProcessSet([])
    everyone.process_set_id = GLOBAL_ID
    everyone.ranks = None
    return everyone


global_process_set = _global()


def _known_ranks(process_set_id: int) -> list[int]:
    known = core.process_sets()
    if process_set_id not in known:
        raise ValueError(f"unknown process set id {process_set_id}; known are {sorted(known)}")
    return known[process_set_id]


def _id_of(ranks: list[int]) -> int | None:
    return next((number for number, members in core.process_sets().items() if sorted(members) == ranks), None)


def require_id(process_set: ProcessSet) -> int:
    """The id of a registered process set; ValueError for anything else."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, got {process_set!r}")
    if process_set.process_set_id is None:
        if process_set.ranks and core.is_initialized() and process_set.ranks[-1] >= core.size():
            raise ValueError(
                f"{process_set} is not registered, because this job has the ranks 0 to {core.size() - 1} only; make a "
                "set of these, in an elastic job by add_process_set() in a reset callback"
            )
        raise ValueError(
            f"{process_set} is not registered; pass it to init(process_sets=[...]) or add_process_set() on every rank"
        )
    return process_set.process_set_id


def _ranks_of_communicator(comm: Any) -> list[int]:
    """Global ranks of an mpi4py communicator whose processes belong to this job's MPI_COMM_WORLD."""
    from mpi4py import MPI

    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    return sorted(MPI.Group.Translate_ranks(group, list(range(group.Get_size())), world))


def _agreed(ranks: list[int] | None, what: str) -> list[list[int] | None]:
    parts = allgather_bytes(json.dumps(ranks).encode(), f"process_set.{what}")
    return [json.loads(part) for part in parts]


def _check_same(lists: list[list[int] | None], what: str) -> None:
    for rank, ranks in enumerate(lists):
        if ranks != lists[0]:
            raise ValueError(
                f"{what}: ranks must pass the same process sets, rank 0 passed {lists[0]}, rank {rank} {ranks}"
            )


def _check_new(ranks: list[int], what: str) -> None:
    if not ranks or ranks[-1] >= core.size():
        raise ValueError(f"{what}: ranks must lie in 0..{core.size() - 1} and not be empty, got {ranks}")
    number = _id_of(ranks)
    if number is not None:
        which = "the global process set" if number == GLOBAL_ID else f"process set {number}"
        raise ValueError(f"{what}: {which} has the ranks {ranks} already")


def _register(ranks: list[int]) -> int:
    work = core.submit(core.VERBS["add_process_set"], f"add_process_set.{ranks}", [], splits=ranks)
    work.wait()
    return work.value()


def _packed(value: Any) -> bytearray:
    """JSON of one length on all ranks, so that a receiver knows it. Two lists of all ranks fit in."""
    return bytearray(json.dumps(value).encode().ljust(256 + 16 * core.size()))


def _lead(ranks: list[int], number: int) -> int:
    """Compares what the other members pass, and sends all of them the id, or the error's text."""
    blocks = {rank: _packed(None) for rank in ranks[1:]}
    works = {rank: start_transfer("receive", block, rank, MEMBERS_TAG) for rank, block in blocks.items()}
    answer: int | str = number
    for rank, work in works.items():
        work.wait()
        proposed, theirs = json.loads(blocks[rank])
        if theirs != ranks:
            answer = f"members must pass the same ranks, rank {ranks[0]} passed {ranks}, rank {rank} {theirs}"
            break
        answer = max(int(answer), proposed)
    sends = [start_transfer("send", _packed(answer), rank, MEMBERS_TAG) for rank in blocks]
    number = _id_or_error(answer)  # of an error, a member that has not called yet gets the text later
    for send in sends:
        send.wait()  # the engine makes the group next, and meanwhile sends nothing
    return number


def _id_or_error(answer: int | str) -> int:
    if isinstance(answer, str):
        raise ValueError(f"add_process_set: {answer}")
    return answer


def _agree_with_members(ranks: list[int]) -> int:
    """The id of a new set; called by its members alone. ValueError on all of them if they passed different ranks that
    begin with the same one. If they begin with others, members wait for different ranks, until the stall limit.
    """
    proposed = max(core.FIRST_MEMBERS_ONLY_SET, _last_of_members + 1)
    if core.rank() == ranks[0]:
        return _lead(ranks, proposed)
    start_transfer("send", _packed([proposed, ranks]), ranks[0], MEMBERS_TAG)
    answer = _packed(None)
    start_transfer("receive", answer, ranks[0], MEMBERS_TAG).wait()
    return _id_or_error(json.loads(answer))


def _add_by_members(ranks: list[int]) -> int:
    global _last_of_members
    if not ranks or ranks[-1] >= core.size():
        raise ValueError(f"add_process_set: ranks must lie in 0..{core.size() - 1} and not be empty, got {ranks}")
    if core.rank() not in ranks:
        raise ValueError(
            f"add_process_set: only members may call with members_only, not rank {core.rank()} for {ranks}"
        )
    number = _agree_with_members(ranks)
    if number >= core.END_OF_PROCESS_SETS:
        raise ValueError(f"add_process_set: {number - core.FIRST_MEMBERS_ONLY_SET} sets were made, which is the limit")
    _last_of_members = number
    core.submit(core.VERBS["add_process_set"], f"add_process_set.{number}", [], splits=ranks, root=number).wait()
    return number


def _require_dynamic() -> None:
    core.size()  # ValueError before init
    if not _dynamic:
        raise ValueError(
            'process sets are fixed; use init(process_sets="dynamic") or SIRTAKI_DYNAMIC_PROCESS_SETS=1 on every rank'
        )


def bind_global(dynamic: bool) -> None:
    """Called by init: the ranks of the global set, and whether process sets may change after init."""
    global _dynamic
    _dynamic = dynamic
    global_process_set.ranks = list(range(core.size()))


def unbind_all() -> None:
    """Called by shutdown: no set is registered any more."""
    global _last_of_members
    _last_of_members = 0
    global_process_set.ranks = None
    for entry in _bound:
        entry.process_set_id = None
    _bound.clear()
    _registered.clear()


def _bind(entry: ProcessSet, number: int | None) -> None:
    entry.process_set_id = number
    _bound.add(entry)


def register_at_init(process_sets: Sequence[ProcessSet]) -> None:
    """Registers the sets given to init, in their order, on every rank; ValueError names the wrong entry.

    A communicator made by a split has different ranks on different processes; each part becomes a process set.
    """
    for number, entry in enumerate(process_sets):
        if entry.mpi_comm is not None:
            _register_communicator(entry, number)
        else:
            _register_alike(entry, "init", f"process_sets[{number}]")
    _register_again()


def _register_alike(entry: ProcessSet, call: str, what: str) -> None:
    """Every rank makes the same call with the same ranks."""
    ranks = entry.ranks or []
    _check_same(_agreed(ranks, call), what)
    same = _id_of(ranks) if settings.flag("ELASTIC") else None  # the job may have become as small as this set
    if same is None:
        _check_new(ranks, what)
    _bind(entry, _register(ranks) if same is None else same)
    _registered.append((entry, call))


def keep_for_next_job() -> bool:
    """The next init() registers the present sets again. Returns whether sets may change after init."""
    _kept[:] = _registered
    return _dynamic


def _register_again() -> None:
    """New ranks make the same calls in their programs. Sets with a rank that the job lacks stay unregistered."""
    kept, _kept[:] = _kept[:], []
    for entry, call in kept:
        if entry.ranks and entry.ranks[-1] < core.size():
            _register_alike(entry, call, str(entry))


def _register_communicator(entry: ProcessSet, number: int) -> None:
    entry.ranks = _ranks_of_communicator(entry.mpi_comm)
    for ranks in sorted({tuple(part) for part in _agreed(entry.ranks, "init") if part}):
        _check_new(list(ranks), f"process_sets[{number}]")
        identity = _register(list(ranks))
        if list(ranks) == entry.ranks:
            _bind(entry, identity)


def bind_existing(process_sets: Sequence[ProcessSet]) -> None:
    """For a second init: binds its sets to registered sets. KeyError if no set with these ranks is registered."""
    for entry in process_sets:
        if entry.mpi_comm is not None and entry.ranks is None:
            entry.ranks = _ranks_of_communicator(entry.mpi_comm)
        number = _id_of(entry.ranks or [])
        if number is None:
            raise KeyError(
                f"no process set with the ranks {entry.ranks} was registered; known are {core.process_sets()}"
            )
        _bind(entry, number)


def add_process_set(process_set: ProcessSet | Sequence[int], members_only: bool = False) -> ProcessSet:
    """Registers a new set. Every rank of the job makes the same calls, in the same order, with the same ranks.

    Needs init(process_sets="dynamic"). ValueError if dynamic sets are off, if a set with these ranks exists, if a rank
    is out of range, or if the ranks differ between processes. NotImplementedError for a communicator.

    members_only: only the members of the set call, in the same order; the other ranks do not know the set. It needs no
    dynamic sets, and another set may have the same ranks. Its members remove it alone, too.

    >>> hvd.add_process_set([0])  # on one rank these are the ranks of the global set
    Traceback (most recent call last):
    ValueError: add_process_set: the global process set has the ranks [0] already
    >>> evens = hvd.add_process_set(range(0, hvd.size(), 2)) if hvd.size() > 1 else hvd.global_process_set
    >>> own = hvd.add_process_set([hvd.rank()], members_only=True)
    >>> own.size(), hvd.remove_process_set(own)
    (1, True)
    """
    entry = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if entry.mpi_comm is not None:
        raise NotImplementedError("a process set from a communicator can only be given to init()")
    if not members_only:
        _require_dynamic()
    core.size()  # ValueError before init
    if entry.process_set_id is not None:
        raise ValueError(f"{entry} is registered already")
    if members_only:
        with _changing:
            _bind(entry, _add_by_members(entry.ranks or []))
        return entry
    _register_alike(entry, "add", "add_process_set")
    return entry


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set: on every rank of the job, or on its members if they made it alone.

    False for the global set, an unregistered set, or before init.

    >>> hvd.remove_process_set(hvd.global_process_set)
    False
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, got {process_set!r}")
    if not core.is_initialized() or process_set.process_set_id in (None, GLOBAL_ID):
        return False
    number = process_set.process_set_id
    if number is not None and number < core.FIRST_MEMBERS_ONLY_SET:
        _require_dynamic()
    try:
        core.submit(core.VERBS["remove_process_set"], f"remove_process_set.{number}", [], splits=[number]).wait()
    except SirtakiInternalError as error:
        if core.is_initialized() and number not in core.process_sets():
            raise ValueError(f"{process_set} is not known any more") from error
        raise
    process_set.process_set_id = None
    _registered[:] = [(entry, call) for entry, call in _registered if entry is not process_set]
    return True
