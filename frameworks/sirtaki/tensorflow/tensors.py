"""Lists of tensors as grouped calls take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def anchor(variable: Any) -> Any:
    """The same object for a Keras variable and the TensorFlow variable in it."""
    return getattr(variable, "handle", variable)


def identity(variable: Any) -> int:
    """The same number for a Keras variable and the TensorFlow variable in it, as long as they exist."""
    return id(anchor(variable))


def check_list(tensors: Any) -> list[Any]:
    """The tensors of a grouped call as a list; ValueError if it is no list or holds nothing."""
    if isinstance(tensors, (tf.Tensor, tf.Variable, tf.IndexedSlices)) or not isinstance(tensors, Sequence):
        raise ValueError(f"a grouped call takes a list of tensors, got {type(tensors).__name__} {tensors!r:.80}")
    if not tensors:
        raise ValueError("a grouped call takes at least one tensor, got an empty list")
    return list(tensors)


def to_tensors(tensors: Any) -> list[tf.Tensor]:
    """The same as dense tensors."""
    return [tf.convert_to_tensor(tensor) for tensor in check_list(tensors)]
