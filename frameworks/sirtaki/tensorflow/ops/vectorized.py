"""Collectives in vectorized loops (tf.vectorized_map, GradientTape.jacobian): one call for all iterations.

Without this, TensorFlow runs the iterations concurrently under one name, and ranks would pair different iterations.
Importing this module registers it. All ranks must run the same number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops.parallel_for import pfor

from sirtaki.reduce_ops import Adasum
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.labels import functions, name_of
from sirtaki.tensorflow.ops.verbs import Reduction

Tensors = list[tf.Tensor]


def _refused(why: str) -> NotImplementedError:
    return NotImplementedError(
        f"{why} cannot run in a vectorized loop; use tf.map_fn in place of tf.vectorized_map, and jacobian(..., "
        "experimental_use_pfor=False)"
    )


def _name(op: Any) -> str | None:
    """Differs from the name of the op in the loop's body, because TensorFlow runs that op once, too."""
    name = name_of(op.inputs[-1])
    path = "/".join([*functions(framework_ops.get_default_graph()), ""])
    return None if name is None else f"{name.removeprefix(path)}.vectorized"


def _reduction(op: Any) -> Reduction:
    how = Reduction.of(op)
    if how.op == Adasum:
        raise _refused("Adasum, which weighs a tensor as a whole,")
    return how


def _convert(loop: Any, call: Callable[[Tensors, str | None], Tensors], swapped: bool) -> list[Any]:
    """Calls with the tensors of all iterations, stacked before or (swapped) after their first dimension."""
    places = list(range(len(loop.op.inputs) - 1))
    if not any(loop.input(i).is_stacked for i in places):
        return [pfor.wrap(result, False) for result in call([loop.unstacked_input(i) for i in places], _name(loop.op))]
    loop.stack_inputs(places)
    stacked = [loop.stacked_input(i) for i in places]
    results = call([_swap(tensor) for tensor in stacked] if swapped else stacked, _name(loop.op))
    return [pfor.wrap(_swap(result) if swapped else result, True) for result in results]


def _swap(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor with its first two dimensions swapped."""
    return tf.transpose(tensor, tf.concat([[1, 0], tf.range(2, tf.rank(tensor))], 0))


@pfor.RegisterPFor("SirtakiAllreduce")
def _allreduce(loop: Any) -> list[Any]:
    how = _reduction(loop.op)
    return _convert(loop, lambda t, name: verbs.allreduce(t, name, how, ignore_name_scope=True), swapped=False)


@pfor.RegisterPFor("SirtakiBroadcast")
def _broadcast(loop: Any) -> list[Any]:
    root, group = loop.op.get_attr("root_rank"), loop.op.get_attr("process_set")
    return _convert(loop, lambda t, name: verbs.broadcast(t, root, name, group, ignore_name_scope=True), swapped=False)


@pfor.RegisterPFor("SirtakiAllgather")
def _allgather(loop: Any) -> list[Any]:
    group = loop.op.get_attr("process_set")
    return _convert(loop, lambda t, name: verbs.allgather(t, name, group, ignore_name_scope=True), swapped=True)


@pfor.RegisterPFor("SirtakiReducescatter")
def _reducescatter(loop: Any) -> list[Any]:
    how = _reduction(loop.op)
    return _convert(loop, lambda t, name: verbs.reducescatter(t, name, how, ignore_name_scope=True), swapped=True)


@pfor.RegisterPFor("SirtakiAlltoall")
def _alltoall(loop: Any) -> list[Any]:
    tensor, splits = loop.input(0), loop.input(1)
    if splits.is_stacked:
        raise _refused("alltoall with splits that differ by iteration")
    own = _swap(tensor.t) if tensor.is_stacked else tensor.t
    group = loop.op.get_attr("process_set")
    output, received = verbs.alltoall(own, splits.t, _name(loop.op), group, ignore_name_scope=True)
    return [pfor.wrap(_swap(output) if tensor.is_stacked else output, tensor.is_stacked), pfor.wrap(received, False)]


@pfor.RegisterPFor("SirtakiTopology")
def _topology(loop: Any) -> list[Any]:
    return [pfor.wrap(verbs.query_again(loop.op), False)]


@pfor.RegisterPFor("SirtakiBarrier")
@pfor.RegisterPFor("SirtakiJoin")
def _refuse_barrier_and_join(loop: Any) -> list[Any]:
    raise _refused(loop.op.type.removeprefix("Sirtaki").lower())
