"""Sparse gradients: merges each rank's rows, gathers and sums them; sends a dense tensor if that is less data."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch

from sirtaki.checks.call_numbers import next_number
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Average, ReduceOp, Sum, checked_op
from sirtaki.torch.collectives.sparse_average import average_rows, sum_rows
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.handles import synchronize

_log = logging.getLogger("sirtaki.torch")
# Among row numbers, one of each rank that has not joined: whether it has a gradient, if only one without rows.
_PRESENT, _ABSENT = -1, -2


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sums or averages COO tensors. Their shape is equal on all ranks; their rows may differ.

    Returns a function that waits and returns the coalesced COO result. ValueError if the tensor is not a COO tensor, or
    op is neither Sum nor Average.

    >>> rows = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], size=(4,))
    >>> wait = hvd.sparse_allreduce_async(rows, name="embedding", op=hvd.Average)
    >>> wait().to_dense()
    tensor([0., 5., 0., 0.])
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async takes a sparse COO tensor, got {getattr(tensor, 'layout', tensor)!r}")
    if checked_op(op) not in (Average, Sum):
        raise ValueError(f"sparse tensors can be reduced with Sum or Average, got {ReduceOp(op)!r}")
    group = require_id(process_set)
    base = name if name is not None else f"sparse.noname.{next_number('sparse', group)}"
    local = tensor.detach().coalesce()
    indices = start_indices(local, base, group)
    values = verbs.start_allgather([local.values().contiguous()], f"{base}.values", group)

    def finish() -> torch.Tensor:
        gathered = GatheredRows(synchronize(indices)[0])
        return _reduced(gathered, synchronize(values)[0], tensor.shape, op)

    return finish


def start_indices(local: torch.Tensor, name: str, group: int, present: bool = True) -> int:
    """Gathers the row numbers of a coalesced tensor as (rows, sparse dimensions), with a mark of each rank behind."""
    indices = local.indices().t()
    mark = indices.new_full((1, indices.shape[1]), _PRESENT if present else _ABSENT)
    return verbs.start_allgather([torch.cat([indices, mark])], f"{name}.indices", group)


class GatheredRows:
    """What start_indices() has gathered. contributors: the number of ranks that have not joined."""

    def __init__(self, gathered: torch.Tensor) -> None:
        first = gathered[:, 0]
        self.indices = gathered[first >= 0]
        self.contributors = len(gathered) - len(self.indices)
        self.on_any_rank = bool((first == _PRESENT).any())


def _reduced(rows: GatheredRows, values: torch.Tensor, shape: torch.Size, op: int) -> torch.Tensor:
    if op != Average or rows.contributors == 1:
        return sum_rows(rows.indices, values, shape)
    return average_rows(rows.indices, values, shape, rows.contributors)


class SparseReduction:
    """The reduction of one sparse gradient in two phases. All ranks gather the row numbers first. So all decide alike
    whether to send the rows or the whole table, whichever is less data.
    """

    def __init__(
        self, local: torch.Tensor, present: bool, name: str, op: int, process_set: ProcessSet, announced: set[str]
    ) -> None:
        """local: this rank's rows. present: whether this rank has a gradient; it may have no rows."""
        self._local = local.coalesce()
        self._name = name
        self._op = op
        self._announced = announced
        self._group = require_id(process_set)
        self._indices = start_indices(self._local, name, self._group, present)
        self._rows: GatheredRows | None = None
        self._second = 0
        self._dense = False
        self.on_any_rank = False

    def start_second_phase(self) -> None:
        """Waits for the row numbers and sends the values. Does nothing at a second call."""
        if self._second:
            return
        self._rows = GatheredRows(synchronize(self._indices)[0])
        self.on_any_rank = self._rows.on_any_rank
        table_rows = math.prod(self._local.shape[: self._local.sparse_dim()])
        self._dense = len(self._rows.indices) > table_rows
        if self._dense:
            self._announce(table_rows)
            table = self._local.to_dense().contiguous()
            self._second = verbs.start_allreduce(
                [table], self._name, (int(self._op), 1.0, 1.0, self._group), outputs=[table]
            )
        else:
            values = self._local.values().contiguous()
            self._second = verbs.start_allgather([values], f"{self._name}.values", self._group)

    def _announce(self, table_rows: int) -> None:
        if self._name not in self._announced:
            self._announced.add(self._name)
            _log.warning(
                "sparse gradient %s: the ranks hold %d rows, more than the table's %d; it is reduced as a dense tensor",
                self._name,
                len(self._rows.indices),
                table_rows,
            )

    def result(self) -> torch.Tensor:
        """The coalesced sum or average, with the rows of all ranks."""
        second = synchronize(self._second)[0]
        if not self._dense:
            return _reduced(self._rows, second, self._local.shape, self._op)
        rows = torch.unique(self._rows.indices, dim=0)
        values = second[tuple(rows.t())]
        return torch.sparse_coo_tensor(rows.t(), values, self._local.shape, is_coalesced=True, check_invariants=False)
