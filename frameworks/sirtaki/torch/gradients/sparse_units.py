"""Units with a sparse gradient: sends this rank's rows and stores the reduced ones."""

from __future__ import annotations

from sirtaki.process_sets import ProcessSet
from sirtaki.torch.collectives.sparse import SparseReduction
from sirtaki.torch.gradients.units import REDUCED, Slot, Unit, no_rows_of, rows_of


def send_sparse(unit: Unit, op: int, process_set: ProcessSet, announced: set[str]) -> None:
    """Submits the row numbers. announced: names of gradients for which a warning was logged already."""
    (slot,) = unit.slots
    name = unit.name.removeprefix("allreduce.") + (f".pass{unit.times + 1}" if unit.times else "")
    rows = rows_of(slot)
    local = rows if rows is not None else no_rows_of(slot.parameter)
    slot.sparse = SparseReduction(local, rows is not None, name, op, process_set, announced)
    unit.hand_over()


def finish_sparse(unit: Unit) -> Slot | None:
    """Waits, and stores the result. Returns the slot if its gradient was replaced or written meanwhile, else None."""
    slot = unit.slots[0]
    changed = unit.changed()
    result = slot.sparse.result()
    if slot.sparse.on_any_rank:
        slot.parameter.grad = slot.gradient = result.to(slot.parameter.dtype)
    slot.sparse, unit.state = None, REDUCED
    return None if changed is True else changed
