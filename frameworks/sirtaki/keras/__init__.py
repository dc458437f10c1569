"""Sirtaki for Keras: `import sirtaki.keras as hvd` replaces `import horovod.keras as hvd`.

Keras 3 runs on TensorFlow or PyTorch, chosen by KERAS_BACKEND; with other backends, the import raises
NotImplementedError. If tf.keras is Keras 2 (TF_USE_LEGACY_KERAS=1), the names are for tf_keras.
"""

from __future__ import annotations

from sirtaki import runtime
from sirtaki.checkpoints.arrays import checkpoint, latest
from sirtaki.checks import call_site
from sirtaki.exceptions import HorovodInternalError, SirtakiInternalError
from sirtaki.extensions import check_extension
from sirtaki.keras import callbacks, elastic
from sirtaki.keras.backends import load as _load
from sirtaki.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    check_parameters,
    reducescatter,
)
from sirtaki.keras.generations import keras as _keras
from sirtaki.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from sirtaki.keras.saving import load_model
from sirtaki.object_collectives import allgather_object, barrier, broadcast_object
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from sirtaki.reduce_ops import Adasum, Average, Sum
from sirtaki.runtime import *  # noqa: F403
from sirtaki.timing.summary import step_report

Compression = _load().Compression
call_site.add_internal_folder(_keras.__path__[0])

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "SirtakiInternalError",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "check_extension",
    "check_parameters",
    "checkpoint",
    "elastic",
    "global_process_set",
    "latest",
    "load_model",
    "reducescatter",
    "remove_process_set",
    "step_report",
]
__all__ += runtime.__all__
