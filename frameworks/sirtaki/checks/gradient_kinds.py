"""Which variables have a gradient on any rank, and of what kind. All ranks must reduce the same list."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence

from sirtaki.checks.parameter_lists import missing_parameters_in_error
from sirtaki.exchange import allreduce_largest
from sirtaki.native import core

NONE, SPARSE, DENSE = range(3)  # the ranks use the largest kind: a dense gradient cannot be sent as rows
_REQUEST = "kinds of gradients, one for each variable"

_Agreed = dict[tuple[int, str, tuple[str, ...]], list[int]]
_NUMBERS = re.compile(r"_\d+")  # Keras counts layers through the whole process
_job = 0
_made: _Agreed = {}  # while graphs were traced, in any job: by process set, place, and names of the variables
_carried: _Agreed = {}  # those that hold in this job, because all its ranks have taken them over


def begin_job() -> None:
    """Called by init: agreements with the ranks of an earlier job no longer hold."""
    global _job
    _job += 1
    _carried.clear()


def made() -> _Agreed:
    """What this rank has agreed on. In an elastic job the graphs of an earlier set of ranks are not traced again."""
    return _made


def carry_over(by_rank: Sequence[_Agreed]) -> None:
    """Takes over what made() gave on each rank, so that no rank waits for others to trace."""
    for agreed in reversed(by_rank):
        _carried.update(agreed)
    _made.update(_carried)


def agreed_kinds(
    kinds: Sequence[int], process_set: int, names: Callable[[], Sequence[str]], where: str = ""
) -> list[int]:
    """For each variable: DENSE if any rank's gradient is dense, SPARSE if some are sparse, NONE if no rank has one.

    Blocks until all ranks of the set have called it; joined ranks count as NONE. If the numbers of variables differ,
    SirtakiInternalError on every rank names the variables that some ranks lack. where: the caller, shown if a rank
    waits long.
    """
    with missing_parameters_in_error(names, process_set):
        return list(allreduce_largest(bytes(kinds), f"{_REQUEST}{where and ' in '}{where}", process_set))


class Agreements:
    """Keeps the agreements made while graphs were traced; a traced graph never changes.

    Ranks retrace at different times (another batch size, for example), so they cannot agree at each trace.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[int]] = {}

    def once(
        self,
        key: Hashable,
        kinds: Sequence[int],
        process_set: int,
        names: Callable[[], Sequence[str]],
        where: str = "",
    ) -> list[int]:
        """agreed_kinds() for the first call with this key and these members; later calls return the same result.

        The key must be new on all ranks or on none.
        """
        members = tuple(core.process_sets().get(process_set, ()))  # ids are reused
        full = (_job, members, key)
        if full not in self._known:
            portable = (process_set, where, tuple(_NUMBERS.sub("", name) for name in names()))
            if portable not in _carried:
                _made[portable] = agreed_kinds(kinds, process_set, names, where)
            self._known[full] = _carried.get(portable) or _made[portable]
        return self._known[full]
