"""Waits for units that were sent."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki.torch.gradients.sending import finish
from sirtaki.torch.gradients.sparse_units import finish_sparse
from sirtaki.torch.gradients.units import SENT, Slot, Unit


def wait_for(units: Sequence[Unit], given_up: bool) -> BaseException | None:
    """Waits for all units that were sent. Returns the first failure.

    given_up: the step is given up, so a gradient that was changed meanwhile is no failure.
    """
    failure: BaseException | None = None
    sent = [unit for unit in units if unit.state == SENT]
    sparse = [unit for unit in sent if unit.slots[0].sparse is not None]
    for step, parts in ((_start_second_phase, sparse), (_finish, sent)):
        for unit in parts:
            try:
                changed = step(unit)
            except Exception as error:
                failure = failure or error
            else:
                if changed is not None and not given_up:
                    failure = failure or RuntimeError(text_of_change(changed))
    return failure


def _start_second_phase(unit: Unit) -> None:
    unit.slots[0].sparse.start_second_phase()


def _finish(unit: Unit) -> Slot | None:
    """Returns a slot whose gradient is not the reduced one."""
    return finish(unit) if unit.slots[0].sparse is None else finish_sparse(unit)


def text_of_change(slot: Slot) -> str:
    return (
        f"{slot.name}.grad was replaced or changed during backward, after it was handed over to be reduced, so that it "
        "does not hold the reduced gradient. Register hooks that do this before DistributedOptimizer is made, or do it "
        "after backward"
    )
