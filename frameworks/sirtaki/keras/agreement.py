"""Which variables have a gradient, and of what kind, on any rank: all ranks must reduce the same list."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sirtaki.exchange import allgather_bytes

NONE, DENSE, SPARSE = range(3)


def agreed_kinds(kinds: Sequence[int], process_set: int) -> list[int]:
    """For each variable: DENSE if any rank's gradient is dense, SPARSE if some are sparse, NONE if no rank has one.

    Blocks until all ranks of the set have called it. ValueError on every rank if they have not as many variables.
    """
    parts = allgather_bytes(bytes(kinds), "allgather.keras.kinds_of_gradients", process_set)
    if len({len(part) for part in parts}) > 1:
        raise ValueError(
            f"the ranks apply different numbers of gradients: {[len(part) for part in parts]} by rank; they must train "
            "the same variables"
        )
    return [DENSE if DENSE in column else max(column) for column in zip(*parts, strict=True)]


class Agreements:
    """What was agreed on while graphs were traced: a graph stays what it is, so that one agreement serves all of them.

    Ranks trace again at different times (another batch size), so that they could not agree each time.
    """

    def __init__(self) -> None:
        self._by_variables: dict[Hashable, list[int]] = {}

    def of_graph(
        self, variables: Sequence[Hashable], names: Sequence[str], kinds: Sequence[int], group: int
    ) -> list[int]:
        """As agreed_kinds, once for each list of variables. RuntimeError for a gradient that nobody had then."""
        key = (group, *variables)
        if key not in self._by_variables:
            self._by_variables[key] = agreed_kinds(kinds, group)
        agreed = self._by_variables[key]
        for name, own, common in zip(names, kinds, agreed, strict=True):
            if own != NONE and (common == NONE or (own == DENSE and common == SPARSE)):
                raise RuntimeError(
                    f"{name} has a gradient of another kind than in the first step (0 none, 1 dense, 2 sparse: now "
                    f"{own}, then {common} at most on any rank). The compiled step of the other ranks does not reduce "
                    "it; use run_eagerly=True, or a new DistributedOptimizer on every rank"
                )
        return agreed
