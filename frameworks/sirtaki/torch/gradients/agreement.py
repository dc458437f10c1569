"""When the ranks vote on parameters and gradients, and what follows from the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.torch.gradients.bucket_table import BucketTable
from sirtaki.torch.gradients.gradient_kinds import Ballot, agree, met_another_request, refuse
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.slots import UNKNOWN, Bucket, Slot


class Agreement:
    """The votes of one optimizer."""

    def __init__(self, table: BucketTable, options: Options, late_names: Callable[[], list[str]]) -> None:
        """late_names: what ranks send first in step() if no gradient is late there."""
        self._late_names = late_names
        self._table = table
        self._options = options
        self._votes = 0
        self._votes_anyway = False  # in a step without changes, for some parameters never had a gradient

    @property
    def is_due(self) -> bool:
        """Whether the parameters have changed, or some never had a gradient."""
        return bool(self._table.waiting.slots) or not self._table.agreed

    def learn(self) -> None:
        """The vote on parameters that had no gradient so far. Makes buckets of those that have one."""
        table = self._table
        asked = list(table.waiting.slots)
        others = table.gone or ([] if self._votes_anyway else table.request_names())
        why = self.change() if table.buckets and not table.agreed else ""
        ballot = Ballot("parameters that have gradients", asked, table.known(), lambda slot: True, why)
        table.add(asked, self._agree(ballot, others))
        self._votes_anyway = bool(table.waiting.slots)

    def find_late(self) -> tuple[list[Slot], list[Bucket]]:
        """The vote on gradients that did not come from a backward with hooks.

        Returns the slots that have a late gradient on some rank: those with buckets, and new buckets of the others.
        """
        table = self._table
        asked = [*table.waiting.slots, *table.known()]
        if not asked:
            return [], []
        ballot = Ballot("gradients that came after backward", asked, [], Slot.is_unsettled, _why(asked))
        found = self._agree(ballot, self._late_names())
        again = [slot for slot, _ in found if slot.kind != UNKNOWN]
        waiting = [slot for slot in asked if slot.kind == UNKNOWN]
        return again, table.add(waiting, [entry for entry in found if entry[0].kind == UNKNOWN])

    def change(self) -> str:
        """What is shown of this rank should the others not come to a vote after a change of the parameters."""
        return _on_all_ranks(self._table.change())

    def _agree(self, ballot: Ballot, others: Sequence[str]) -> list[tuple[Slot, int]]:
        """The result of a vote. others: what ranks wait for in place of it that do not come to it.

        The vote has the first of these names. So such ranks meet it, and all ranks get an error at once.
        """
        prefix, first, group = self._options.prefix, self._options.first_name, self._options.group
        name = others[0] if others else f"allreduce.{prefix}{first}: vote {self._votes + 1}"
        try:
            found = agree(ballot, name, group)
        except SirtakiInternalError as error:
            if met_another_request(error):
                refuse(others[1:], group)
            raise
        self._votes += not others
        self._table.note_agreed()
        return found


def _why(slots: Sequence[Slot]) -> str:
    """What is shown of this rank should the others not come to the vote."""
    first = next((slot for slot in slots if slot.is_unsettled()), None)
    if first is None:
        return _on_all_ranks("the optimizer's parameters have changed")
    came = "was replaced after it had been reduced" if first.gradient is not None else "was not there in backward"
    return _on_all_ranks(f"{first.name}.grad {came}")


def _on_all_ranks(what: str) -> str:
    return f"{what}, which must be so on all ranks"
