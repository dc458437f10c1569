"""allgather: every rank gets the tensors of all ranks, joined along dimension 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import to_tensors


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """A new tensor: the ranks' tensors in the order of ranks. Only dimension 0 may differ by rank; it may be 0.

    Differentiable: the average over ranks of the gradient; each rank gets its own rows.

    >>> hvd.allgather(tf.constant([[1, 2]])).shape.as_list()  # (rows of all ranks, 2)
    [1, 2]
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather of several tensors as one request. Returns a list. Differentiable.

    >>> [each.numpy().tolist() for each in hvd.grouped_allgather([tf.constant([1]), tf.constant([True])])]
    [[1], [True]]
    """
    return verbs.allgather(to_tensors(tensors), name, require_id(process_set), ignore_name_scope=ignore_name_scope)
