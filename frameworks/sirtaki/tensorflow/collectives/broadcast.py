"""broadcast: every rank gets the root's tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import checked_root
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import check_variables, to_tensor


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """A new tensor with the root's values. root_rank is a global rank that belongs to the set. Differentiable.

    Gradient: the average over ranks on the root, zero on the others.

    >>> hvd.broadcast(tf.constant([1.0, 2.0]), root_rank=0).numpy().tolist()
    [1.0, 2.0]
    """
    root, group = checked_root(root_rank), require_id(process_set)
    return verbs.broadcast([to_tensor(tensor)], root, name, group, ignore_name_scope=ignore_name_scope)[0]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites the variables with the root's values, as one request, and returns them. Not differentiable.

    In a graph of TensorFlow 1 it returns tensors with the new values. A session that evaluates any of them overwrites
    all variables, which must be initialized. ValueError unless all are variables.

    >>> variable = tf.Variable([1.0])
    >>> hvd.broadcast_([variable], root_rank=0)[0] is variable
    True
    """
    root, group = checked_root(root_rank), require_id(process_set)
    listed = check_variables(variables)
    if not listed:
        return []
    if tf.executing_eagerly() or tf.inside_function():
        values = verbs.broadcast([to_tensor(variable) for variable in listed], root, name, group)
        for variable, value in zip(listed, values, strict=True):
            variable.assign(value)
        return listed
    values = verbs.broadcast([variable.read_value() for variable in listed], root, name, group)
    assigned = [tf.compat.v1.assign(variable, value) for variable, value in zip(listed, values, strict=True)]
    with tf.control_dependencies(assigned):
        return [tf.identity(value) for value in values]
