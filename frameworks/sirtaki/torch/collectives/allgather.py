"""allgather: every rank gets the tensors of all ranks, joined along dimension 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.ops import autograd, verbs
from sirtaki.torch.ops.arguments import names
from sirtaki.torch.ops.handles import synchronize
from sirtaki.torch.ops.tensors import check_tensors


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor: the tensors of all ranks, joined in rank order. Only dimension 0 may differ by rank; it may be 0.

    Differentiable: the gradient is averaged over the ranks, and each rank keeps its own rows.
    """
    return _gather([tensor], name, process_set)[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """As allgather, without waiting and without gradient: a handle whose result is the new tensor."""
    group = require_id(process_set)
    call, _ = names("allgather", name, group)
    return verbs.start_allgather(check_tensors([tensor]), call, group, convert=lambda results: results[0])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather of several tensors as one unit: a list. Differentiable."""
    return list(_gather(tensors, name, process_set))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As grouped_allgather, without waiting and without gradient: one handle, whose result is a tuple."""
    group = require_id(process_set)
    call, _ = names("allgather", name, group)
    return verbs.start_allgather(check_tensors(tensors), call, group)


def _gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> Sequence[torch.Tensor]:
    group = require_id(process_set)
    call, grad = names("allgather", name, group)
    if torch.compiler.is_compiling():
        return autograd.grouped_allgather(list(tensors), call, grad, group)
    listed = check_tensors(tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in listed):
        return autograd.grouped_allgather(listed, call, grad, group)
    return synchronize(verbs.start_allgather(listed, call, group, awaited=True))
