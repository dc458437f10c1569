"""Announces the end of a training step: all its gradients are reduced. In a graph, an op does that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.native import core
from sirtaki.tensorflow.ops import verbs


def announce(reduced: Sequence[Any]) -> list[Any]:
    """The same gradients. In a graph the first one waits for the announcement, so that it cannot be left out."""
    results = list(reduced)
    if tf.executing_eagerly():
        core.end_step()
        return results
    there = [tensor for tensor in tf.nest.flatten(results, expand_composites=True) if tensor is not None]
    first = next((i for i, result in enumerate(results) if tf.is_tensor(result)), None)
    if first is None:
        return results
    with tf.control_dependencies(there):
        ended = verbs.query("end_step")
    with tf.control_dependencies([ended]):
        results[first] = tf.identity(results[first])
    return results
