"""alltoall: every rank sends rows of its tensor to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.ops import autograd, plain_calls, verbs
from sirtaki.torch.ops.arguments import names
from sirtaki.torch.ops.tensors import check_output, check_tensor


def checked_splits(splits: torch.Tensor | Sequence[int] | None) -> list[int]:
    """The rows for each rank; [] for equal parts. ValueError unless splits is 1-D int32 or a list of integers."""
    if splits is None:
        return []
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32:
            raise ValueError(f"splits must be int32, got {splits.dtype}")
        if splits.dim() != 1:
            raise ValueError(f"splits must have one dimension, got shape {tuple(splits.shape)}")
        values = splits.tolist()
    else:
        values = list(splits)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"splits must be integers of at least 0, got {value!r} in {values!r}")
    if not values:
        raise ValueError("splits must have one entry for each rank, got none")
    return values


def _with_received_splits(work: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return work.outcome(), torch.tensor(work.received_splits(), dtype=torch.int32)


def _check(tensor: torch.Tensor, out: torch.Tensor | None) -> None:
    check_tensor(tensor)
    if tensor.dim() == 0:
        raise ValueError(f"alltoall splits dimension 0, got a tensor without dimensions: {tensor!r}")
    if out is not None:
        check_output(out, tensor)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows that all ranks sent to this rank, in rank order; with splits also their number by rank, int32.

    splits: the number of rows for each rank, counted along dimension 0; rows beyond their sum are not sent. Without it
    dimension 0 must be a multiple of the number of ranks. out: contiguous memory for the rows, of the tensor's dtype
    and exactly the result's shape. By default a new tensor. ValueError on this rank alone if the result has another
    shape. It must not overlap the tensor. Differentiable without out: each row of the gradient returns to the rank that
    sent the row.

    >>> rows = torch.tensor([[1.0], [2.0], [3.0]])
    >>> hvd.alltoall(rows, splits=[2] + [0] * (hvd.size() - 1))  # the first two rows to rank 0, none to others
    (tensor([[1.],
            [2.]]), tensor([2], dtype=torch.int32))
    """
    group, rows = require_id(process_set), checked_splits(splits)
    call, grad = names("alltoall", name, group)
    if splits is None:
        result = plain_calls.run(plain_calls.ALLTOALL, tensor, out, call, plain_calls.moved(group))
        if result is not None:
            return result
    if torch.compiler.is_compiling():
        output, received = autograd.alltoall(tensor, rows, call, grad, group)
        output = output if out is None else out.copy_(output)
        return output if splits is None else (output, received)
    _check(tensor, out)
    if out is None and torch.is_grad_enabled() and tensor.requires_grad:
        output, received = autograd.alltoall(tensor, rows, call, grad, group)
    else:
        output, received = verbs.alltoall(tensor, rows, call, group, out)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> int:
    """As alltoall, without waiting and without gradient. The handle's result is always (output, received_splits).

    >>> output, received_splits = hvd.synchronize(hvd.alltoall_async(torch.arange(4)))
    >>> output, received_splits
    (tensor([0, 1, 2, 3]), tensor([4], dtype=torch.int32))
    """
    group, rows = require_id(process_set), checked_splits(splits)
    call, _ = names("alltoall", name, group)
    if splits is None:
        how = plain_calls.moved(group)
        handle = plain_calls.start(plain_calls.ALLTOALL, tensor, out, call, how, finish=_with_received_splits)
        if handle is not None:
            return handle
    _check(tensor, out)
    return verbs.start_alltoall(tensor, rows, call, group, out)
