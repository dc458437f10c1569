"""Batch normalisation over the batches of all ranks, as a layer of Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Sum
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.verbs import Reduction


@keras.saving.register_keras_serializable("sirtaki")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization with mean and variance over all ranks of the process set while training.

    fused: False, else ValueError: TensorFlow's fused kernel knows one rank only. The batch sizes of the ranks may
    differ. Counts and sums are one float64 tensor, so the variance (a difference) keeps the precision of float32.
    """

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(f"SyncBatchNormalization does not support fused={fused!r}; use fused=False")
        if keras.backend.backend() != "tensorflow":
            raise ValueError(f"SyncBatchNormalization needs Keras on TensorFlow, not on {keras.backend.backend()}")
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        group = require_id(self.process_set)
        if verbs.known_size(group) == 1:
            return super()._moments(inputs, mask)
        wide = tf.cast(inputs, tf.float64)
        weights = tf.ones_like(wide) if mask is None else tf.cast(_spread(mask, wide), tf.float64)
        axes = self._reduction_axes
        parts = [
            tf.reduce_sum(wide * weights, axes),
            tf.reduce_sum(tf.square(wide) * weights, axes),
            tf.reduce_sum(weights, axes),
        ]
        # Keras numbers layers through the whole process, so the names in the name scope may differ by rank.
        (sums,) = verbs.allreduce([tf.stack(parts)], None, Reduction(int(Sum), group=group), ignore_name_scope=True)
        mean, square = tf.math.divide_no_nan(sums[0], sums[2]), tf.math.divide_no_nan(sums[1], sums[2])
        variance = tf.maximum(square - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _spread(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The mask, broadcast to the shape of the masked tensor."""
    for _ in range(like.shape.rank - mask.shape.rank):
        mask = mask[..., tf.newaxis]
    return tf.broadcast_to(mask, tf.shape(like))
