"""Sirtaki for PyTorch: `import sirtaki.torch as hvd` takes the place of `import horovod.torch as hvd`.

What holds for all collectives. Every rank of the process set makes the same call. Tensors are dense and contiguous, on
the CPU or a GPU: bool, integers of 8 to 64 bits, float16, bfloat16, float32, float64. Complex ones can be summed and
averaged, and moved; float8 can be moved. `name`: equal on all ranks; without it calls are numbered in their order.

ValueError at the call, with the value, for wrong arguments. HorovodInternalError on every rank if the ranks' calls do
not fit together (verb, shape, dtype, op), with what each rank has; or if the job has failed, with the first cause. An
asynchronous call raises them in synchronize().
"""

from __future__ import annotations

import os

import torch

from sirtaki import runtime, torch_backend
from sirtaki.checks import call_site
from sirtaki.exceptions import HorovodInternalError, SirtakiInternalError
from sirtaki.extensions import check_extension
from sirtaki.object_collectives import allgather_object, barrier, broadcast_object
from sirtaki.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from sirtaki.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from sirtaki.runtime import *  # noqa: F403
from sirtaki.timing.summary import step_report
from sirtaki.torch import elastic
from sirtaki.torch.captured import capture
from sirtaki.torch.checkpoints import checkpoint, latest
from sirtaki.torch.collectives.allgather import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from sirtaki.torch.collectives.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from sirtaki.torch.collectives.alltoall import alltoall, alltoall_async
from sirtaki.torch.collectives.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from sirtaki.torch.collectives.join import join
from sirtaki.torch.collectives.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from sirtaki.torch.collectives.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from sirtaki.torch.collectives.rooted import gather, reduce, scatter
from sirtaki.torch.collectives.sparse import sparse_allreduce_async
from sirtaki.torch.compression import Compression
from sirtaki.torch.functions import broadcast_optimizer_state, broadcast_parameters
from sirtaki.torch.ops.handles import poll, synchronize
from sirtaki.torch.optimizer import DistributedOptimizer
from sirtaki.torch.parameter_check import check_parameters
from sirtaki.torch.sync_batch_norm import SyncBatchNorm

call_site.add_internal_folder(os.path.dirname(torch.__file__))
torch_backend.register()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "P2POp",
    "ProcessSet",
    "Product",
    "SirtakiInternalError",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "capture",
    "check_extension",
    "check_parameters",
    "checkpoint",
    "elastic",
    "gather",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "irecv",
    "isend",
    "join",
    "latest",
    "poll",
    "recv",
    "reduce",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "scatter",
    "send",
    "sparse_allreduce_async",
    "step_report",
    "synchronize",
]
__all__ += runtime.__all__
