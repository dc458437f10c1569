"""broadcast: every rank gets the root's tensor."""

from __future__ import annotations

import torch

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.ops import autograd, plain_calls, verbs
from sirtaki.torch.ops.arguments import checked_root, names
from sirtaki.torch.ops.handles import synchronize
from sirtaki.torch.ops.tensors import check_tensor, empty_result


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values. root_rank: a global rank of the process set. Differentiable.

    Gradient: the average over the ranks on the root, zero on the other ranks.

    >>> hvd.broadcast(torch.tensor([1.0, 2.0]), root_rank=0)
    tensor([1., 2.])
    """
    root, group = checked_root(root_rank), require_id(process_set)
    call, grad = names("broadcast", name, group)
    result = plain_calls.run(plain_calls.BROADCAST, tensor, None, call, plain_calls.moved(group), root)
    if result is not None:
        return result
    if torch.compiler.is_compiling():
        return autograd.broadcast(tensor, root, call, grad, group)
    check_tensor(tensor)
    if torch.is_grad_enabled() and tensor.requires_grad:
        return autograd.broadcast(tensor, root, call, grad, group)
    return synchronize(verbs.start_broadcast(tensor, empty_result(tensor), root, call, group, awaited=True))


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As broadcast, without waiting and without gradient: a handle whose result is the new tensor.

    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor(5), root_rank=0))
    tensor(5)
    """
    root, group = checked_root(root_rank), require_id(process_set)
    call, _ = names("broadcast", name, group)
    handle = plain_calls.start(plain_calls.BROADCAST, tensor, None, call, plain_calls.moved(group), root)
    if handle is not None:
        return handle
    check_tensor(tensor)
    return verbs.start_broadcast(tensor, empty_result(tensor), root, call, group)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """As broadcast_async, with the values written into the tensor.

    >>> tensor = torch.zeros(2)
    >>> hvd.synchronize(hvd.broadcast_async_(tensor, root_rank=0)) is tensor
    True
    """
    root, group = checked_root(root_rank), require_id(process_set)
    call, _ = names("broadcast", name, group)
    handle = plain_calls.start(plain_calls.BROADCAST, tensor, tensor, call, plain_calls.moved(group), root)
    if handle is not None:
        return handle
    check_tensor(tensor)
    return verbs.start_broadcast(tensor, tensor, root, call, group)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As broadcast, in place: returns the tensor itself. Not differentiable.

    >>> hvd.broadcast_(torch.zeros(2), root_rank=0)
    tensor([0., 0.])
    """
    root, group = checked_root(root_rank), require_id(process_set)
    call, _ = names("broadcast", name, group)
    result = plain_calls.run(plain_calls.BROADCAST, tensor, tensor, call, plain_calls.moved(group), root)
    if result is not None:
        return result
    check_tensor(tensor)
    return synchronize(verbs.start_broadcast(tensor, tensor, root, call, group, awaited=True))
