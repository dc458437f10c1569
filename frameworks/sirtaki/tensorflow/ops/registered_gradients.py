"""The gradients of the ops, registered with TensorFlow when this module is imported.

Which gradient. Let L_r be the loss on rank r, M their mean over the P ranks of the process set, and x one rank's input.
These are Horovod's gradients, which programs rely on, the same as in sirtaki.torch; they are not all of one kind:

* allreduce (Average, Sum), alltoall: d(L_0 + ... + L_{P-1})/dx = P * dM/dx. Averaged over ranks afterwards, as
  DistributedGradientTape does with the gradients of variables, this gives exactly the gradient of the mean loss.
* allgather, broadcast: dM/dx itself.
* reducescatter (Average, Sum): P * d(L_0 + ... + L_{P-1})/dx = P * P * dM/dx.

Adasum's gradient is, by convention, the Adasum of the gradients. Min, Max and Product have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki.reduce_ops import Adasum, Average, ReduceOp, Sum
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.labels import name_of
from sirtaki.tensorflow.ops.verbs import Reduction

Gradients = list[Any]


def _grad_name(op: Any) -> str | None:
    """Derived from the forward call's name; unnamed calls are numbered."""
    name = name_of(op.inputs[-1])
    return None if name is None else f"{name}.grad"


def _reduction(op: Any, verb: str) -> Reduction:
    how = Reduction.of(op)
    if how.op not in (Average, Sum, Adasum):
        raise NotImplementedError(f"{verb} with op={ReduceOp(how.op).name} has no gradient")
    return how


def _of_floats(
    op: Any, grads: Sequence[Any], reduce: Callable[[list[tf.Tensor], list[tf.Tensor]], Sequence[tf.Tensor]]
) -> Gradients:
    """`reduce(grads, inputs)` for the inputs with a floating dtype, None for the others."""
    tensors = op.inputs[: len(op.outputs)]
    places = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    dense = [_dense(grads[i], op.outputs[i]) for i in places]
    results: Gradients = [None] * len(op.inputs)
    for place, result in zip(places, reduce(dense, [tensors[i] for i in places]), strict=True):
        results[place] = result
    return results


def _dense(grad: Any, output: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)


@tf.RegisterGradient("SirtakiAllreduce")
def _allreduce(op: Any, *grads: Any) -> Gradients:
    how = _reduction(op, "allreduce")
    return _of_floats(op, grads, lambda dense, _: verbs.allreduce(dense, _grad_name(op), how, ignore_name_scope=True))


@tf.RegisterGradient("SirtakiBroadcast")
def _broadcast(op: Any, *grads: Any) -> Gradients:
    """On the root the average of the gradients, on the others zero."""
    group, root = op.get_attr("process_set"), op.get_attr("root_rank")

    def reduce(dense: list[tf.Tensor], _: list[tf.Tensor]) -> list[tf.Tensor]:
        means = verbs.allreduce(dense, _grad_name(op), Reduction(group=group), ignore_name_scope=True)
        is_root = tf.equal(verbs.query("rank"), root)
        return [tf.where(is_root, mean, tf.zeros_like(mean)) for mean in means]

    return _of_floats(op, grads, reduce)


@tf.RegisterGradient("SirtakiAllgather")
def _allgather(op: Any, *grads: Any) -> Gradients:
    """The average of the gradients; each rank gets the rows that it contributed."""
    group, name = op.get_attr("process_set"), _grad_name(op)

    def reduce(dense: list[tf.Tensor], inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        means = verbs.allreduce(dense, name, Reduction(group=group), ignore_name_scope=True)
        rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])
        sizes = None if name is None else f"{name}.sizes"
        (of_all,) = verbs.allgather([rows[tf.newaxis]], sizes, group, ignore_name_scope=True)
        starts = tf.reduce_sum(of_all[: verbs.query("rank_in_set", group)], 0)
        return [mean[starts[i] : starts[i] + rows[i]] for i, mean in enumerate(means)]

    return _of_floats(op, grads, reduce)


@tf.RegisterGradient("SirtakiAlltoall")
def _alltoall(op: Any, grad: Any, _unused: Any) -> Gradients:
    """Rows go back to the rank that sent them; rows that were not sent have no gradient."""
    tensor, received = op.inputs[0], op.outputs[1]
    if not tensor.dtype.is_floating:
        return [None] * 3
    dense, group = _dense(grad, op.outputs[0]), op.get_attr("process_set")
    returned, _ = verbs.alltoall(dense, received, _grad_name(op), group, ignore_name_scope=True)
    unsent = tf.shape(tensor)[0] - tf.shape(returned)[0]
    zeros = tf.zeros(tf.concat([[unsent], tf.shape(tensor)[1:]], 0), returned.dtype)
    return [tf.concat([returned, zeros], 0), None, None]


@tf.RegisterGradient("SirtakiReducescatter")
def _reducescatter(op: Any, *grads: Any) -> Gradients:
    """The gradients of all parts, joined. As Horovod does, multiplied by the number of ranks for Sum."""
    how = _reduction(op, "reducescatter")

    def reduce(dense: list[tf.Tensor], _: list[tf.Tensor]) -> list[tf.Tensor]:
        ranks = verbs.query("size", how.group) if how.op == Sum else 1
        factor = how.prescale * how.postscale
        scaled = [grad * tf.cast(ranks, grad.dtype) * tf.cast(factor, grad.dtype) for grad in dense]
        return verbs.allgather(scaled, _grad_name(op), how.group, ignore_name_scope=True)

    return _of_floats(op, grads, reduce)


for _name in ("SirtakiBarrier", "SirtakiJoin", "SirtakiTopology"):
    tf.no_gradient(_name)
