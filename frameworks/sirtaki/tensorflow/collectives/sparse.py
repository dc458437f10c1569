"""IndexedSlices: merges each rank's rows, gathers and sums them; sends a dense tensor if that is less data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sirtaki.reduce_ops import Average, ReduceOp, Sum
from sirtaki.tensorflow.collectives.sparse_average import average_slices
from sirtaki.tensorflow.compression import Compressor
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.verbs import Reduction

_log = logging.getLogger("sirtaki.tensorflow")
_announced: set[str] = set()
_MARK = -1  # among row numbers


def _check(how: Reduction) -> None:
    if how.op not in (Average, Sum):
        name = ReduceOp(how.op).name
        raise NotImplementedError(f"IndexedSlices can be reduced by Sum and Average only, not by {name}")


def merged(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same slices with each index once."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(_wide(slices.values), places, tf.shape(indices)[0])
    return tf.IndexedSlices(tf.cast(values, slices.values.dtype), indices, slices.dense_shape)


def _wide(values: tf.Tensor) -> tf.Tensor:
    """16-bit floats as float32, the dtype of their sums."""
    return tf.cast(values, tf.float32) if values.dtype in (tf.float16, tf.bfloat16) else values


def _scaled(values: tf.Tensor, factor: float) -> tf.Tensor:
    return values if factor == 1.0 else values * tf.cast(factor, values.dtype)


def reduce_slices(
    slices: tf.IndexedSlices, name: str | None, how: Reduction, compression: type[Compressor], **scope: bool
) -> tf.IndexedSlices:
    """The sum or average over the ranks, each index once; scaled as a dense tensor is.

    The row indices are gathered first. By them all ranks decide alike whether to send rows or the whole table.
    """
    _check(how)
    own = merged(slices)
    if name is None and not tf.executing_eagerly():
        name, scope = "allreduce", {"ignore_name_scope": True}

    def called(what: str) -> str | None:
        return None if name is None else f"{name}.{what}"

    # Always sent as int64: a rank without a gradient does not know the dtype of the others' indices.
    # Each rank that has not joined adds a mark, by which the ranks are counted.
    marked = tf.concat([tf.cast(own.indices, tf.int64), [_MARK]], 0)
    (of_all,) = verbs.allgather([marked], called("indices"), how.group, **scope)
    gathered = tf.boolean_mask(of_all, tf.not_equal(of_all, _MARK))  # `!=` compares objects in a v1 graph
    ranks = tf.size(of_all) - tf.size(gathered)

    def by_rows() -> tuple[tf.Tensor, tf.Tensor]:
        wire, ctx = compression.compress(own.values)
        (values,) = verbs.allgather([wire], called("values"), how.group, **scope)
        wide = _scaled(_wide(compression.decompress(values, ctx)), how.prescale)
        rows = tf.IndexedSlices(wide, gathered, slices.dense_shape)
        total = average_slices(rows, ranks, merged) if how.op == Average else merged(rows)
        return tf.cast(_scaled(total.values, how.postscale), slices.values.dtype), total.indices

    def by_table() -> tuple[tf.Tensor, tf.Tensor]:
        _announce(name, tf.size(gathered), slices.dense_shape[0])
        wire, ctx = compression.compress(tf.convert_to_tensor(own))
        (table,) = verbs.allreduce([wire], called("table"), how, **scope)
        rows = tf.unique(gathered)[0]
        return tf.gather(compression.decompress(table, ctx), rows), rows

    if slices.dense_shape is None:
        values, indices = by_rows()
    else:
        too_many = tf.size(gathered, tf.int64) > tf.cast(slices.dense_shape[0], tf.int64)
        values, indices = _choose(too_many, by_table, by_rows)
    return tf.IndexedSlices(values, tf.cast(indices, slices.indices.dtype), slices.dense_shape)


def _choose(condition: tf.Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    if tf.executing_eagerly():
        return yes() if condition else no()
    return tf.cond(condition, yes, no)


def _announce(name: str | None, rows: tf.Tensor, table_rows: tf.Tensor) -> None:
    """Logs once for each name that it is reduced as a table."""
    key = name or ""

    def log_once(rows_now: Any, table_rows_now: Any) -> None:
        if key not in _announced:
            _announced.add(key)
            _log.warning(
                "IndexedSlices %s: the ranks hold %d rows, more than the table's %d; reduced as a dense tensor",
                key,
                rows_now,
                table_rows_now,
            )

    if tf.executing_eagerly():
        log_once(int(rows), int(table_rows))
    else:
        tf.numpy_function(log_once, [rows, table_rows], [])
