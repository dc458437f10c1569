"""Broadcasts parameters and optimizer state, so that all ranks have equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sirtaki import exchange
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.collectives.broadcast import broadcast_async_
from sirtaki.torch.ops.arguments import checked_root
from sirtaki.torch.ops.handles import synchronize
from sirtaki.torch.optimizer_state import apply_state, portable_state


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites each tensor with the root's values. The tensors may have any memory layout.

    params: a state_dict, a list of (name, tensor), or a list of tensors; None entries are skipped. ValueError for
    anything else, also for a generator: make a list of it first.

    >>> model = torch.nn.Linear(3, 2)
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    root = checked_root(root_rank)
    with torch.no_grad():
        pending = [_start(name, tensor, root, process_set) for name, tensor in named_tensors(params)]
        for handle, dense, tensor in pending:
            synchronize(handle)
            if dense is not tensor:
                tensor.copy_(dense)


def _start(name: str, tensor: torch.Tensor, root: int, process_set: ProcessSet) -> tuple[int, Any, torch.Tensor]:
    dense = tensor if tensor.is_contiguous() else tensor.contiguous()
    return broadcast_async_(dense, root, name, process_set), dense, tensor


def named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    """The argument of broadcast_parameters() as (name, tensor) pairs; ValueError if it is not valid."""
    if isinstance(params, Mapping):
        entries = sorted(params.items())
    elif isinstance(params, list):
        entries = [e if isinstance(e, tuple) else (f"parameter.{i}", e) for i, e in enumerate(params)]
    else:
        raise ValueError(f"params must be a dict or a list, got {type(params).__name__}; make a list of a generator")
    result = []
    for entry in entries:
        if len(entry) != 2 or not isinstance(entry[0], str):
            raise ValueError(f"params must hold tensors or (name, tensor), got {entry!r}")
        if entry[1] is None:
            continue
        if not isinstance(entry[1], torch.Tensor):
            raise ValueError(f"params[{entry[0]!r}] must be a tensor or None, got {type(entry[1]).__name__}")
        result.append((entry[0], entry[1].detach()))
    return result


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Replaces the optimizer state and hyper-parameters of every rank by the root's. A rank's own state may be empty.

    Takes no step, and changes nothing on the root. model: ignored; Horovod's programs pass it. ValueError for LBFGS,
    or if the parameter groups differ from the root's. With shard_optimizer_state each rank has its part of the state
    already: hyper-parameters are broadcast only, and every rank calls load_state_dict to load a checkpoint.

    >>> optimizer = torch.optim.Adam(torch.nn.Linear(3, 2).parameters(), lr=0.1)
    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of torch.optim.LBFGS")
    root, group = checked_root(root_rank), require_id(process_set)
    is_root = core.rank() == root
    sharded = getattr(getattr(optimizer, "_distributed", None), "sharding", None) is not None
    skeleton, tensors = portable_state(optimizer, not sharded) if is_root else (None, [])
    skeleton = exchange.broadcast_object(skeleton, root, "optimizer_state", group)
    if not is_root:
        tensors = [torch.empty(entry.shape, dtype=entry.dtype) for entry in skeleton.tensors]
    handles = [
        broadcast_async_(tensor, root, f"optimizer_state.{number}", process_set)
        for number, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        apply_state(optimizer, skeleton, tensors, not sharded)
