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
_PRESENT = -1  # a row number that means: this rank has a gradient, perhaps without rows


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sums or averages COO tensors. Their shape is equal on all ranks; their rows may differ.

    Returns a function that waits and returns the coalesced COO result. ValueError if the tensor is not a COO tensor, or
    op is neither Sum nor Average.
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
        gathered = synchronize(indices)[0]
        rows = synchronize(values)[0]
        return _reduced(gathered, rows, tensor.shape, op, process_set)

    return finish


def start_indices(local: torch.Tensor, name: str, group: int) -> int:
    """Gathers the row numbers of a coalesced tensor as (rows, sparse dimensions)."""
    return verbs.start_allgather([local.indices().t().contiguous()], f"{name}.indices", group)


def _reduced(
    indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, op: int, process_set: ProcessSet
) -> torch.Tensor:
    ranks = (process_set.size() or 1) if op == Average else 1
    return sum_rows(indices, values, shape) if ranks == 1 else average_rows(indices, values, shape, ranks)


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
        self._process_set = process_set
        self._announced = announced
        self._group = require_id(process_set)
        indices = self._local.indices().t()
        if present:
            indices = torch.cat([indices, indices.new_full((1, indices.shape[1]), _PRESENT)])
        self._indices = verbs.start_allgather([indices.contiguous()], f"{name}.indices", self._group)
        self._gathered: torch.Tensor | None = None
        self._second = 0
        self._dense = False
        self.on_any_rank = False

    def start_second_phase(self) -> None:
        """Waits for the row numbers and sends the values. Does nothing at a second call."""
        if self._second:
            return
        gathered = synchronize(self._indices)[0]
        is_row = gathered[:, 0] != _PRESENT
        self._gathered = gathered[is_row]
        self.on_any_rank = len(gathered) > 0
        table_rows = math.prod(self._local.shape[: self._local.sparse_dim()])
        self._dense = self._gathered.shape[0] > table_rows
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
                self._gathered.shape[0],
                table_rows,
            )

    def result(self) -> torch.Tensor:
        """The coalesced sum or average, with the rows of all ranks."""
        second = synchronize(self._second)[0]
        if not self._dense:
            return _reduced(self._gathered, second, self._local.shape, self._op, self._process_set)
        rows = torch.unique(self._gathered, dim=0)
        values = second[tuple(rows.t())]
        return torch.sparse_coo_tensor(rows.t(), values, self._local.shape, is_coalesced=True, check_invariants=False)
