"""Sirtaki for TensorFlow: `import sirtaki.tensorflow as hvd` replaces `import horovod.tensorflow as hvd`."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import Any

import tensorflow as tf

from sirtaki.checks import call_site
from sirtaki.exceptions import HorovodInternalError, SirtakiInternalError
from sirtaki.extensions import check_extension
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from sirtaki.runtime import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
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
    "SyncBatchNormalization",
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
    "ccl_built",
    "check_extension",
    "check_parameters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "step_report",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # a Keras layer; importing Keras takes seconds
        from sirtaki.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module 'sirtaki.tensorflow' has no attribute {name!r}")
