"""gather, scatter, reduce: collectives in which one rank, the root, gives or gets everything."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Average, choose_op
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.arguments import checked_root, names, reduction
from sirtaki.torch.ops.handles import submit, synchronize
from sirtaki.torch.ops.tensors import check_reducible, check_tensor, describe


def _place_of(root: int, process_set: ProcessSet) -> tuple[int, int, int]:
    """(place of the root within the set, of this rank, size of the set)."""
    require_id(process_set)
    ranks = process_set.ranks or []
    if root not in ranks:
        raise ValueError(f"root rank {root} is not among the ranks {ranks} of the process set")
    return ranks.index(root), process_set.rank() or 0, len(ranks)


def gather(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensors of all ranks joined along dimension 0 on the root; 0 rows on the other ranks.

    Numbers of rows may differ; the other dimensions and the dtype must not. root_rank: a global rank of the process
    set. No gradient. The data moves to the root only. In messages it is called alltoall, which moves it.

    >>> hvd.gather(torch.tensor([1, 2]), root_rank=0)
    tensor([1, 2])
    """
    root, _, size = _place_of(checked_root(root_rank), process_set)
    check_tensor(tensor)
    if tensor.dim() == 0:
        raise ValueError("gather needs a tensor with at least one dimension, got a scalar")
    call, _ = names("alltoall", None if name is None else f"gather.{name}", require_id(process_set))
    splits = [tensor.shape[0] if place == root else 0 for place in range(size)]
    return verbs.alltoall(tensor.detach(), splits, call, require_id(process_set), root=root)[0]


def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A part of the root's rows on each rank: splits[i] rows on rank i of the process set, by default equal parts.

    On the other ranks the tensor gives the dtype and the shape of a row only: torch.empty(0, 3). No gradient. In
    messages it is called alltoall, which moves the data.

    >>> hvd.scatter(torch.arange(4), root_rank=0)
    tensor([0, 1, 2, 3])
    """
    root, own, size = _place_of(checked_root(root_rank), process_set)
    check_tensor(tensor)
    if tensor.dim() == 0:
        raise ValueError("scatter needs a tensor with at least one dimension, got a scalar")
    parts: list[int] = [0] * size
    if own == root:
        parts = [tensor.shape[0] // size] * size if splits is None else [int(rows) for rows in splits]
        if sum(parts) != tensor.shape[0]:
            raise ValueError(f"scatter: {tensor.shape[0]} rows cannot be divided into {parts}")
    call, _ = names("alltoall", None if name is None else f"scatter.{name}", require_id(process_set))
    return verbs.alltoall(tensor.detach(), parts, call, require_id(process_set), root=root)[0]


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """As allreduce; the result is on the root only, None on the other ranks. No gradient.

    >>> hvd.reduce(torch.tensor([1.0, 2.0]), root_rank=0, op=hvd.Sum)
    tensor([1., 2.])
    """
    root, own, _ = _place_of(checked_root(root_rank), process_set)
    number, *_, group = reduction(choose_op(None, op), 1.0, 1.0, process_set)
    check_tensor(tensor)
    check_reducible(tensor, number)
    call, _ = names("allreduce", name, group)
    given, result = tensor.detach(), verbs.empty_result(tensor)
    tensors, options = [describe(given, result)], {"op": number, "root": root, "process_set": group, "awaited": True}
    synchronize(submit("allreduce", call, tensors, lambda work: None, keep=(given, result), **options))
    return result if own == root else None
