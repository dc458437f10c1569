"""Sirtaki for TensorFlow: `import sirtaki.tensorflow as hvd` replaces `import horovod.tensorflow as hvd`.

What holds for all collectives. Every rank of the process set makes the same call, eagerly or in a tf.function. Tensors
are dense: bool, integers of 8 to 64 bits, float16, bfloat16, float32, float64; allreduce also takes IndexedSlices.
`name`: equal on all ranks; without it calls are named by the graph, or numbered in their order.

ValueError or TypeError at the call for wrong arguments. If the ranks' calls do not fit together, or the job has failed,
every rank gets an error of TensorFlow (InvalidArgumentError, FailedPreconditionError or UnknownError) with the cause.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import Any

import tensorflow as tf

from sirtaki import runtime
from sirtaki.checkpoints.arrays import checkpoint, latest
from sirtaki.checks import call_site
from sirtaki.exceptions import HorovodInternalError, SirtakiInternalError
from sirtaki.extensions import check_extension
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from sirtaki.runtime import *  # noqa: F403
from sirtaki.tensorflow import elastic
from sirtaki.tensorflow.collectives.allgather import allgather, grouped_allgather
from sirtaki.tensorflow.collectives.allreduce import allreduce, grouped_allreduce
from sirtaki.tensorflow.collectives.alltoall import alltoall
from sirtaki.tensorflow.collectives.broadcast import broadcast, broadcast_
from sirtaki.tensorflow.collectives.join import barrier, join
from sirtaki.tensorflow.collectives.reducescatter import grouped_reducescatter, reducescatter
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from sirtaki.tensorflow.gradients.aggregation import LocalGradientAggregationHelper
from sirtaki.tensorflow.ops import registered_gradients as _gradients  # noqa: F401  importing it registers them
from sirtaki.tensorflow.ops import vectorized as _vectorized  # noqa: F401  the same
from sirtaki.tensorflow.ops.rank_and_size import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from sirtaki.tensorflow.optimizer import DistributedOptimizer
from sirtaki.tensorflow.parameter_check import check_parameters
from sirtaki.tensorflow.session_hook import BroadcastGlobalVariablesHook
from sirtaki.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from sirtaki.timing.summary import step_report

call_site.add_internal_folder(os.path.dirname(tf.__file__))
for _name in ("keras", "tf_keras"):  # only looked up: an import takes seconds
    _spec = importlib.util.find_spec(_name)
    if _spec is not None and _spec.origin is not None:
        call_site.add_internal_folder(os.path.dirname(_spec.origin))
# AutoGraph's versions of the user's functions have different file names on each rank.
call_site.add_internal_prefix(os.path.join(tempfile.gettempdir(), "__autograph_generated_file"))

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "SirtakiInternalError",
    "Sum",
    "SyncBatchNormalization",  # noqa: F405  from __getattr__
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "check_parameters",
    "checkpoint",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "latest",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
    "step_report",
]
__all__ += runtime.__all__


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # a Keras layer; importing Keras takes seconds
        from sirtaki.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module 'sirtaki.tensorflow' has no attribute {name!r}")
