"""allgather: every rank gets the tensors of all ranks, joined along dimension 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.ops import autograd, plain_calls, verbs
from sirtaki.torch.ops.arguments import names
from sirtaki.torch.ops.tensors import check_outputs, check_tensors


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The tensors of all ranks, joined in rank order. Only dimension 0 may differ by rank; it may be 0.

    out: contiguous memory for the result, of the tensor's dtype and exactly the result's shape; returned. By default a
    new tensor. ValueError on this rank alone if the result has another shape. It must not overlap the tensor.
    Differentiable without out: the gradient is averaged over the ranks, and each rank keeps its own rows.

    >>> hvd.allgather(torch.tensor([[1, 2]]))  # (rows of all ranks, 2)
    tensor([[1, 2]])
    >>> memory = torch.empty(hvd.size(), 2)
    >>> hvd.allgather(torch.tensor([[1.0, 2.0]]), out=memory) is memory
    True
    """
    group = require_id(process_set)
    call, grad = names("allgather", name, group)
    result = plain_calls.run(plain_calls.ALLGATHER, tensor, out, call, plain_calls.moved(group))
    return _gather([tensor], call, grad, group, None if out is None else [out])[0] if result is None else result


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> int:
    """As allgather, without waiting and without gradient: a handle whose result is the tensor.

    >>> hvd.synchronize(hvd.allgather_async(torch.tensor([3, 4])))
    tensor([3, 4])
    """
    group = require_id(process_set)
    call, _ = names("allgather", name, group)
    if (handle := plain_calls.start(plain_calls.ALLGATHER, tensor, out, call, plain_calls.moved(group))) is not None:
        return handle
    outputs = None if out is None else check_outputs([out], check_tensors([tensor]))
    return verbs.start_allgather([tensor], call, group, outputs, convert=lambda results: results[0])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather of several tensors as one unit: a list. Differentiable.

    >>> hvd.grouped_allgather([torch.tensor([1]), torch.tensor([True])])
    [tensor([1]), tensor([True])]
    """
    group = require_id(process_set)
    return list(_gather(tensors, *names("allgather", name, group), group))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As grouped_allgather, without waiting and without gradient: one handle, whose result is a tuple.

    >>> hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([1]), torch.tensor([2])]))
    (tensor([1]), tensor([2]))
    """
    group = require_id(process_set)
    call, _ = names("allgather", name, group)
    return verbs.start_allgather(check_tensors(tensors), call, group)


def _gather(
    tensors: Sequence[torch.Tensor],
    call: str,
    grad: str,
    group: int,
    outputs: Sequence[torch.Tensor] | None = None,
) -> Sequence[torch.Tensor]:
    if torch.compiler.is_compiling():
        results = autograd.grouped_allgather(list(tensors), call, grad, group)
        return results if outputs is None else [out.copy_(x) for out, x in zip(outputs, results, strict=True)]
    listed = check_tensors(tensors)
    if outputs is not None:
        return verbs.allgather(listed, call, group, check_outputs(outputs, listed))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in listed):
        return autograd.grouped_allgather(listed, call, grad, group)
    return verbs.allgather(listed, call, group)
