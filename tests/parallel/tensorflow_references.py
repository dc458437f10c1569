"""What each rank contributes, which every rank can compute, and what the collectives must make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import sirtaki.tensorflow as hvd

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64)
TOLERANCE = {tf.float16: 2e-3, tf.bfloat16: 2e-2, tf.float32: 1e-6, tf.float64: 1e-14}
MODES = ("eager", "function")


def values(rank: int, shape: tuple[int, ...], dtype: tf.DType, seed: int = 0) -> tf.Tensor:
    """Small numbers, none of them 0, that no other rank has."""
    generator = np.random.default_rng(1000 * seed + rank)
    if dtype == tf.bool:
        return tf.constant(generator.integers(0, 2, shape).astype(bool))
    if dtype in INTEGERS:
        return tf.cast(generator.integers(1, 6, shape), dtype)
    return tf.cast(generator.random(shape) + 0.5, dtype)


def wide(tensor: tf.Tensor) -> np.ndarray:
    return tf.cast(tensor, tf.float64).numpy() if tensor.dtype in FLOATS else tensor.numpy().astype(np.int64)


def reduced(parts: list[tf.Tensor], op: int) -> np.ndarray:
    """The reduction in float64 (integers: int64); integer averages are truncated toward zero."""
    stacked = np.stack([wide(part) for part in parts])
    if op == hvd.Average:
        mean = stacked.sum(0) / len(parts)
        return mean if parts[0].dtype in FLOATS else np.trunc(mean).astype(np.int64)
    return {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](stacked, 0)


def check(result: tf.Tensor, expected: np.ndarray, dtype: tf.DType, what: Any = "") -> None:
    """Same shape, dtype and values; floats within the rounding of a few operations."""
    assert result.dtype == dtype, (what, result.dtype)
    assert tuple(result.shape) == expected.shape, (what, result.shape, expected.shape)
    if dtype in FLOATS:
        limit = TOLERANCE[dtype] * (np.abs(expected).max() if expected.size else 1.0)
        np.testing.assert_allclose(wide(result), expected, rtol=0, atol=limit, err_msg=str(what))
    else:
        np.testing.assert_array_equal(wide(result), expected, err_msg=str(what))


def in_mode(mode: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call itself, or traced into a graph."""
    return call if mode == "eager" else tf.function(call)
