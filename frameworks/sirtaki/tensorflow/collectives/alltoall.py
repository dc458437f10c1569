"""alltoall: every rank sends rows of its tensor to every rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import to_tensor


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """The rows sent to this rank, in the order of ranks. With splits: (rows, int32 number of rows from each rank).

    splits: 1-D int32, number of rows for each rank, in order of dimension 0; further rows are ignored. Without it
    dimension 0 must be a multiple of the number of ranks. Differentiable: gradient rows return to their senders.

    >>> rows, received = hvd.alltoall(tf.constant([1.0, 2.0, 3.0]), splits=[2])  # on one rank
    >>> rows.numpy().tolist(), received.numpy().tolist()
    ([1.0, 2.0], [2])
    """
    group = require_id(process_set)
    rows = _rows(splits)
    if splits is not None and rows.shape.rank == 1 and rows.shape[0] == 0:
        raise ValueError("splits must have one entry for each rank, got none")
    output, received = verbs.alltoall(to_tensor(tensor), rows, name, group, ignore_name_scope=ignore_name_scope)
    return output if splits is None else (output, received)


def _rows(splits: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor([] if splits is None else splits, dtype=tf.int32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"splits must hold int32 numbers, got {type(splits).__name__} {splits!r:.80}") from error
