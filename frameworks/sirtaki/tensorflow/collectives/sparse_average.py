"""Averages of gathered rows, by the rule of docs/arithmetic.md."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

Merge = Callable[[tf.IndexedSlices], tf.IndexedSlices]
_POWERS = [1 << i for i in range(31)]


def average_slices(slices: tf.IndexedSlices, ranks: tf.Tensor, merged: Merge) -> tf.IndexedSlices:
    """Each index once, divided by `ranks` (an int32 scalar); integers are truncated toward zero.

    slices: no 16-bit floats. merged: sums the rows of each index.
    """
    average = _average_floats if slices.values.dtype.is_floating else _average_integers
    return average(slices, ranks, merged)


def _average_floats(slices: tf.IndexedSlices, ranks: tf.Tensor, merged: Merge) -> tf.IndexedSlices:
    """Halves the values until no sum can overflow; halving is exact. Rounding must not make the result infinite."""
    dtype = slices.values.dtype
    power = tf.gather(_POWERS, tf.searchsorted(_POWERS, [ranks])[0])
    halved = slices.values / tf.cast(power, dtype)
    total = merged(tf.IndexedSlices(halved, slices.indices, slices.dense_shape))
    average = total.values / (tf.cast(ranks, dtype) / tf.cast(power, dtype))
    average = tf.where(tf.math.is_finite(total.values), tf.clip_by_value(average, dtype.min, dtype.max), average)
    return tf.IndexedSlices(average, total.indices, slices.dense_shape)


def _average_integers(slices: tf.IndexedSlices, ranks: tf.Tensor, merged: Merge) -> tf.IndexedSlices:
    """Sums quotients and remainders separately; both sums fit into 64 bits."""
    wide, divisor = tf.cast(slices.values, tf.int64), tf.cast(ranks, tf.int64)
    quotients = wide // divisor
    total = merged(tf.IndexedSlices(quotients, slices.indices, slices.dense_shape))
    rest = merged(tf.IndexedSlices(wide - quotients * divisor, slices.indices, slices.dense_shape)).values
    down = total.values + rest // divisor
    average = down + tf.cast((down < 0) & (rest % divisor != 0), tf.int64)
    return tf.IndexedSlices(tf.cast(average, slices.values.dtype), total.indices, slices.dense_shape)
