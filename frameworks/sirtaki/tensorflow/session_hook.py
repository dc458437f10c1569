"""Broadcasts variables when a monitored session of TensorFlow 1 starts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import checked_root
from sirtaki.tensorflow.functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all global variables with the root's values once a session exists, new or from a checkpoint.

    For tf.compat.v1.train.MonitoredTrainingSession(hooks=[...]), on every rank. device: where the assignments run.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root_rank = checked_root(root_rank)
        self._device = device
        self._operation: Any = None

    def begin(self) -> None:
        """TensorFlow calls it before it finalizes the graph."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self._device or None):
                self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)
