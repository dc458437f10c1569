"""Buckets with a sparse gradient: sends this rank's rows and stores the reduced ones."""

from __future__ import annotations

import torch

from sirtaki.torch.collectives.sparse import SparseReduction
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.slots import Bucket, Slot


class SparseSender:
    """Sends the sparse gradients of one optimizer. pending: those whose second phase has not begun."""

    def __init__(self, options: Options) -> None:
        self.pending: list[SparseWork] = []
        self._options = options
        self._announced: set[str] = set()  # gradients for which a warning was logged

    def send(self, bucket: Bucket) -> None:
        """Submits the row numbers."""
        (slot,) = bucket.slots
        rows, name = _rows_of(slot), bucket.call_name().removeprefix("allreduce.")
        local = rows if rows is not None else _no_rows_of(slot.parameter)
        options = (self._options.op, self._options.process_set, self._announced)
        work = SparseWork(SparseReduction(local, rows is not None, name, *options), self.pending)
        bucket.note_sent(work, work)
        self.pending.append(work)


class SparseWork:
    """Takes the place of a Work, and of what was packed."""

    def __init__(self, reduction: SparseReduction, pending: list[SparseWork]) -> None:
        self._reduction = reduction
        self._pending = pending
        self._failure: Exception | None = None

    def wait(self, stream: int | None = None) -> None:
        """Begins the second phase of all that are pending, so that they run at the same time."""
        while self._pending:
            self._pending[0]._start_second_phase()
            del self._pending[0]
        if self._failure is not None:
            raise self._failure

    def _start_second_phase(self) -> None:
        try:
            self._reduction.start_second_phase()
        except Exception as error:
            self._failure = error

    def unpack(self, bucket: Bucket) -> None:
        """Waits, and stores the result."""
        (slot,) = bucket.slots
        result = self._reduction.result()
        if self._reduction.on_any_rank:
            slot.parameter.grad = slot.gradient = result.to(slot.parameter.dtype)


def _rows_of(slot: Slot) -> torch.Tensor | None:
    """This rank's rows, sparse in the first dimension, as embeddings make them; None if it has no gradient."""
    grad = slot.parameter.grad
    if grad is None:
        return None
    return grad.detach() if grad.is_sparse else grad.detach().to_sparse(1)


def _no_rows_of(parameter: torch.Tensor) -> torch.Tensor:
    """A sparse gradient without rows."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
