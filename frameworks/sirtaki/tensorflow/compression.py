"""How gradients are sent. Subclass Compressor to write your own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.compression import Compressor, NoneCompressor


class _CastCompressor(Compressor):
    """Sends floating tensors in another dtype; integers unchanged."""

    wire = tf.float32

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if not tensor.dtype.is_floating or tensor.dtype == cls.wire:
            return tensor, None
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16: values above 65504 overflow, values below 6e-8 become 0."""

    wire = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16: the range of float32 with 8 bits of mantissa."""

    wire = tf.bfloat16


class Compression:
    """The built-in compressors: Compression.none, Compression.fp16, Compression.bf16.

    >>> hvd.allreduce(tf.constant([0.5, 2.0]), compression=hvd.Compression.fp16).numpy()
    array([0.5, 2. ], dtype=float32)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
