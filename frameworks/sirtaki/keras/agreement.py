"""What a compiled step may find in a later trace: sirtaki.agreement, with refusal of what nobody had at first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sirtaki import agreement
from sirtaki.agreement import DENSE as DENSE
from sirtaki.agreement import NONE as NONE
from sirtaki.agreement import SPARSE as SPARSE
from sirtaki.agreement import agreed_kinds as agreed_kinds

_WORDS = {NONE: "no gradient", SPARSE: "a sparse gradient", DENSE: "a dense gradient"}


class Agreements(agreement.Agreements):
    def of_graph(
        self, variables: Sequence[Hashable], names: Sequence[str], kinds: Sequence[int], group: int
    ) -> list[int]:
        """As agreed_kinds, once for each list of variables. RuntimeError for a gradient that nobody had then."""
        agreed = self.once(tuple(variables), kinds, group, lambda: names)
        for name, own, common in zip(names, kinds, agreed, strict=True):
            if own > common:
                raise RuntimeError(
                    f"{name} has {_WORDS[own]}, while in the first step the ranks together had {_WORDS[common]}. The "
                    "compiled step of the other ranks does not reduce it; use run_eagerly=True, or a new "
                    "DistributedOptimizer on every rank"
                )
        return agreed
