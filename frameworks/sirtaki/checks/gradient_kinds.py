"""Which variables have a gradient, and of what kind, on the ranks together: all must reduce the same list."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from sirtaki.checks.parameter_lists import told_by_name
from sirtaki.exchange import allreduce_largest
from sirtaki.native import core

NONE, SPARSE, DENSE = range(3)  # the largest of the ranks' is what they have in common: a dense one cannot be rows
_REQUEST = "kinds of gradients, one for each variable"

_job = 0


def begin_job() -> None:
    """Called by init: nothing is agreed on with the ranks of another job."""
    global _job
    _job += 1


def agreed_kinds(
    kinds: Sequence[int], process_set: int, names: Callable[[], Sequence[str]], where: str = ""
) -> list[int]:
    """For each variable: DENSE if any rank's gradient is dense, SPARSE if some are sparse, NONE if no rank has one.

    Blocks until all ranks of the set have called it; those that have joined have none. SirtakiInternalError on every
    rank if they have not as many variables, which says who lacks which by their names. where: for a rank that waits.
    """
    with told_by_name(names, process_set):
        return list(allreduce_largest(bytes(kinds), f"{_REQUEST}{where and ' in '}{where}", process_set))


class Agreements:
    """What was agreed on while graphs were traced: a graph stays what it is, so that one agreement serves all of them.

    Ranks trace again at different times (another batch size), so that they could not agree each time.
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
        """As agreed_kinds, the first time for each key and members of a process set; later the same again.

        The key must be new on all ranks or on none.
        """
        members = tuple(core.process_sets().get(process_set, ()))  # ids are given again
        full = (_job, members, key)
        if full not in self._known:
            self._known[full] = agreed_kinds(kinds, process_set, names, where)
        return self._known[full]
