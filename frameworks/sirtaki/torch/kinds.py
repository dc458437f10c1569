"""Ranks learn together whether a parameter's gradients are dense or sparse, from whatever rank has one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.reduce_ops import Sum
from sirtaki.torch import raw
from sirtaki.torch.handles import synchronize
from sirtaki.torch.units import DENSE, SPARSE, Slot


def learn_kinds(unknown: Sequence[Slot], name: str, group: int, sparse_as_dense: bool) -> None:
    """Sets the kind of each of these slots, the same on all ranks, for which some rank has a gradient."""
    used = [slot.parameter.grad is not None for slot in unknown]
    sparse = [
        int(has and (slot.as_table or slot.parameter.grad.is_sparse)) for has, slot in zip(used, unknown, strict=True)
    ]
    dense = [int(has and not rows) for has, rows in zip(used, sparse, strict=True)]
    ballot = torch.tensor([dense, sparse], dtype=torch.int32)
    how = (int(Sum), 1.0, 1.0, group)
    counts = synchronize(raw.start_allreduce([ballot], name, how, outputs=[ballot]))[0].tolist()
    for slot, has_dense, has_sparse in zip(unknown, *counts, strict=True):
        if has_dense or (has_sparse and sparse_as_dense):
            slot.kind, slot.as_table = DENSE, not has_dense
        elif has_sparse:
            slot.kind = SPARSE
