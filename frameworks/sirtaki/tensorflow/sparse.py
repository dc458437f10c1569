"""IndexedSlices: each rank's rows are merged, gathered and added up; dense once that is less traffic."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.reduce_ops import Average, ReduceOp, Sum
from sirtaki.tensorflow import raw
from sirtaki.tensorflow.compression import Compressor
from sirtaki.tensorflow.raw import Reduction


def _check(how: Reduction) -> None:
    if how.op not in (Average, Sum):
        raise NotImplementedError(
            f"IndexedSlices can be reduced by Sum and Average only, not by {ReduceOp(how.op).name}"
        )
    if how.prescale != 1.0 or how.postscale != 1.0:
        raise NotImplementedError(
            f"IndexedSlices cannot be scaled; got prescale_factor={how.prescale}, postscale_factor={how.postscale}"
        )


def merged(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same slices with each index once."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def reduce_slices(
    slices: tf.IndexedSlices, name: str | None, how: Reduction, compression: type[Compressor], **scope: bool
) -> tf.IndexedSlices:
    """The sum or average over the ranks, each index once."""
    _check(how)
    own = merged(slices)
    called = "allreduce" if name is None and not tf.executing_eagerly() else name
    part = (lambda what: None) if called is None else (lambda what: f"{called}.{what}")
    (indices,) = raw.allgather([own.indices], part("indices"), how.group, **scope)
    wire, ctx = compression.compress(own.values)
    (values,) = raw.allgather([wire], part("values"), how.group, **scope)
    total = merged(tf.IndexedSlices(compression.decompress(values, ctx), indices, slices.dense_shape))
    if how.op == Sum:
        return total
    ranks: Any = tf.cast(raw.ask("size", how.group), total.values.dtype)
    return tf.IndexedSlices(total.values / ranks, total.indices, slices.dense_shape)
