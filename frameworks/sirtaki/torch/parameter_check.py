"""Compares parameters between ranks: check_parameters(). See sirtaki.checks.parameter_check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sirtaki.checks.parameter_check import Parameter, check_equal
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.functions import named_tensors


def described(name: str, tensor: torch.Tensor) -> Parameter:
    """Works for every memory layout, and for dtypes that NumPy does not have."""
    dense = tensor.detach().cpu().contiguous().reshape(-1)
    return Parameter.of(name, dense.view(torch.uint8).numpy())._replace(shape=tuple(tensor.shape))


def check_parameters(params: Mapping[str, Any] | Iterable[Any], process_set: ProcessSet = global_process_set) -> None:
    """Compares the values of all ranks bit by bit, by checksums. Blocks until all ranks of the set have called it.

    params: as in broadcast_parameters(). HorovodInternalError on every rank if values differ; it names the first
    parameter that does.

    >>> model = torch.nn.Linear(3, 2)
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    >>> hvd.check_parameters(model.state_dict())  # no error: equal on all ranks
    """
    group = require_id(process_set)
    check_equal([described(name, tensor) for name, tensor in named_tensors(params)], group)
