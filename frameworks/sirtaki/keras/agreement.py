"""The agreed gradient kinds of a compiled step, kept for later traces. Refuses gradients that no rank had at first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sirtaki.checks import gradient_kinds
from sirtaki.checks.gradient_kinds import DENSE as DENSE
from sirtaki.checks.gradient_kinds import NONE as NONE
from sirtaki.checks.gradient_kinds import SPARSE as SPARSE
from sirtaki.checks.gradient_kinds import agreed_kinds as agreed_kinds

_WORDS = {NONE: "no gradient", SPARSE: "a sparse gradient", DENSE: "a dense gradient"}


class Agreements(gradient_kinds.Agreements):
    def of_graph(
        self, variables: Sequence[Hashable], names: Sequence[str], kinds: Sequence[int], group: int
    ) -> list[int]:
        """agreed_kinds(), once for each list of variables. RuntimeError for a gradient that no rank had then."""
        agreed = self.once(tuple(variables), kinds, group, lambda: names)
        for name, own, common in zip(names, kinds, agreed, strict=True):
            if own > common:
                raise RuntimeError(
                    f"{name} has {_WORDS[own]}, while in the first step the ranks together had {_WORDS[common]}. The "
                    "compiled step of the other ranks does not reduce it; use run_eagerly=True, or a new "
                    "DistributedOptimizer on every rank"
                )
        return agreed
