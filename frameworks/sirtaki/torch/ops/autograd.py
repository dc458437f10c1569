"""The differentiable form of each verb, as a torch operator: autograd and torch.compile see one operator.

Which gradient. Let L_r be the loss on rank r, M their mean over the P ranks of the process set, and x one rank's input.
These are Horovod's gradients, on which programs rely; they follow three different rules:

* allreduce (Average, Sum), alltoall: d(L_0 + ... + L_{P-1})/dx = P * dM/dx. DistributedOptimizer then averages the
  gradients of parameters over the ranks, which gives exactly the gradient of the mean loss.
* allgather, broadcast: dM/dx itself.
* reducescatter (Average, Sum): P * d(L_0 + ... + L_{P-1})/dx = P * P * dM/dx.

Adasum's gradient is, by convention, the Adasum of the gradients. Min, Max and Product have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sirtaki.native import core
from sirtaki.reduce_ops import Adasum, Average, ReduceOp, Sum
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.handles import synchronize

_REDUCTION = "str name, str grad_name, SymInt op, float pre, float post, SymInt group"


def _operator(name: str, schema: str) -> Any:
    """The schema is in words, since torch 2.4 cannot infer it from annotations that are not evaluated."""
    return torch.library.custom_op(f"sirtaki::{name}", mutates_args=(), schema=schema)


def _next(grad_name: str) -> str:
    """The name for the gradient of a gradient."""
    return f"{grad_name}.grad" if grad_name else ""


def _check_differentiable(op: int, verb: str) -> None:
    if op not in (Average, Sum, Adasum):
        raise NotImplementedError(f"{verb} with op={ReduceOp(op).name} has no gradient; use it under torch.no_grad()")


def _members(process_set: int) -> list[int]:
    return core.process_sets()[process_set]


@_operator("allreduce", f"(Tensor tensor, {_REDUCTION}) -> Tensor")
def allreduce(tensor: Tensor, name: str, grad_name: str, op: int, pre: float, post: float, group: int) -> Tensor:
    return verbs.allreduce([tensor], name, (op, pre, post, group))[0]


@allreduce.register_fake
def _(tensor: Tensor, name: str, grad_name: str, op: int, pre: float, post: float, group: int) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _save_reduction(ctx, inputs, output) -> None:
    _, _, ctx.name, *ctx.reduction = inputs


def _allreduce_backward(ctx, grad: Tensor):
    _check_differentiable(ctx.reduction[0], "allreduce")
    result = allreduce(grad.contiguous(), ctx.name, _next(ctx.name), *ctx.reduction)
    return (result, *[None] * 6)


allreduce.register_autograd(_allreduce_backward, setup_context=_save_reduction)


@_operator("grouped_allreduce", f"(Tensor[] tensors, {_REDUCTION}) -> Tensor[]")
def grouped_allreduce(
    tensors: list[Tensor], name: str, grad_name: str, op: int, pre: float, post: float, group: int
) -> list[Tensor]:
    return list(verbs.allreduce(tensors, name, (op, pre, post, group)))


@grouped_allreduce.register_fake
def _(tensors: list[Tensor], name: str, grad_name: str, op: int, pre: float, post: float, group: int) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _grouped_allreduce_backward(ctx, grads: list[Tensor]):
    _check_differentiable(ctx.reduction[0], "grouped_allreduce")
    dense = [grad.contiguous() for grad in grads]
    return (grouped_allreduce(dense, ctx.name, _next(ctx.name), *ctx.reduction), *[None] * 6)


grouped_allreduce.register_autograd(_grouped_allreduce_backward, setup_context=_save_reduction)


@_operator("grouped_allgather", "(Tensor[] tensors, str name, str grad_name, SymInt group) -> Tensor[]")
def grouped_allgather(tensors: list[Tensor], name: str, grad_name: str, group: int) -> list[Tensor]:
    return list(verbs.allgather(tensors, name, group))


@grouped_allgather.register_fake
def _(tensors: list[Tensor], name: str, grad_name: str, group: int) -> list[Tensor]:
    ctx = torch.library.get_ctx()
    return [tensor.new_empty((ctx.new_dynamic_size(), *tensor.shape[1:])) for tensor in tensors]


def _save_allgather(ctx, inputs, output) -> None:
    tensors, _, ctx.name, ctx.group = inputs
    ctx.rows = [tensor.shape[0] for tensor in tensors]


def _grouped_allgather_backward(ctx, grads: list[Tensor]):
    """Averages the gradients; each rank keeps the rows that it contributed."""
    reduction = (int(Average), 1.0, 1.0, ctx.group)
    summed = grouped_allreduce([g.contiguous() for g in grads], ctx.name, _next(ctx.name), *reduction)
    rows = torch.tensor([ctx.rows], dtype=torch.int64)
    sizes_name = f"{ctx.name}.sizes" if ctx.name else ""
    rows_before = verbs.allgather([rows], sizes_name, ctx.group)[0]
    starts = rows_before[: _members(ctx.group).index(core.rank())].sum(0).tolist()
    own = [grad.narrow(0, start, count) for grad, start, count in zip(summed, starts, ctx.rows, strict=True)]
    return own, None, None, None


grouped_allgather.register_autograd(_grouped_allgather_backward, setup_context=_save_allgather)


@_operator("broadcast", "(Tensor tensor, SymInt root, str name, str grad_name, SymInt group) -> Tensor")
def broadcast(tensor: Tensor, root: int, name: str, grad_name: str, group: int) -> Tensor:
    return synchronize(verbs.start_broadcast(tensor, verbs.empty_result(tensor), root, name, group, awaited=True))


@broadcast.register_fake
def _(tensor: Tensor, root: int, name: str, grad_name: str, group: int) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _save_broadcast(ctx, inputs, output) -> None:
    _, ctx.root, _, ctx.name, ctx.group = inputs


def _broadcast_backward(ctx, grad: Tensor):
    """The average of the gradients on the root, zero elsewhere."""
    result = allreduce(grad.contiguous(), ctx.name, _next(ctx.name), int(Average), 1.0, 1.0, ctx.group)
    if core.rank() != ctx.root:
        result = result * 0
    return result, None, None, None, None


broadcast.register_autograd(_broadcast_backward, setup_context=_save_broadcast)


@_operator("alltoall", "(Tensor tensor, SymInt[] splits, str name, str grad_name, SymInt group) -> (Tensor, Tensor)")
def alltoall(tensor: Tensor, splits: list[int], name: str, grad_name: str, group: int) -> tuple[Tensor, Tensor]:
    return verbs.alltoall(tensor, splits, name, group)


@alltoall.register_fake
def _(tensor: Tensor, splits: list[int], name: str, grad_name: str, group: int) -> tuple[Tensor, Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size()
    received = torch.empty(len(_members(group)), dtype=torch.int32)
    return tensor.new_empty((rows, *tensor.shape[1:])), received


def _save_alltoall(ctx, inputs, output) -> None:
    tensor, _, _, ctx.name, ctx.group = inputs
    ctx.rows = tensor.shape[0]
    ctx.save_for_backward(output[1])


def _alltoall_backward(ctx, grad: Tensor, _unused: Tensor):
    """Each row returns to its sender; rows that were not sent have a zero gradient."""
    (received,) = ctx.saved_tensors
    result, _ = alltoall(grad.contiguous(), received.tolist(), ctx.name, _next(ctx.name), ctx.group)
    unsent = ctx.rows - result.shape[0]
    if unsent:
        result = torch.cat([result, result.new_zeros((unsent, *result.shape[1:]))])
    return result, None, None, None, None


alltoall.register_autograd(_alltoall_backward, setup_context=_save_alltoall)


@_operator("grouped_reducescatter", f"(Tensor[] tensors, {_REDUCTION}) -> Tensor[]")
def grouped_reducescatter(
    tensors: list[Tensor], name: str, grad_name: str, op: int, pre: float, post: float, group: int
) -> list[Tensor]:
    return list(verbs.reducescatter(tensors, name, (op, pre, post, group)))


@grouped_reducescatter.register_fake
def _(tensors: list[Tensor], name: str, grad_name: str, op: int, pre: float, post: float, group: int) -> list[Tensor]:
    members = _members(group)
    rank, size = members.index(core.rank()), len(members)
    return [t.new_empty(((t.shape[0] + size - 1 - rank) // size, *t.shape[1:])) for t in tensors]


def _grouped_reducescatter_backward(ctx, grads: list[Tensor]):
    """The gradients of all parts, joined; Horovod multiplies by the number of ranks for Sum."""
    op, pre, post, group = ctx.reduction
    factor = pre * post * (len(_members(group)) if op == Sum else 1)
    scaled = [(grad * factor if factor != 1.0 else grad).contiguous() for grad in grads]
    return (grouped_allgather(scaled, ctx.name, _next(ctx.name), group), *[None] * 6)


grouped_reducescatter.register_autograd(_grouped_reducescatter_backward, setup_context=_save_reduction)
