"""torch's reduce operations, as the core has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from sirtaki.reduce_ops import Average, Max, Min, Product, Sum

_KINDS = ReduceOp.RedOpType
_OPS: dict[Any, int] = {
    _KINDS.SUM: int(Sum),
    _KINDS.AVG: int(Average),
    _KINDS.MIN: int(Min),
    _KINDS.MAX: int(Max),
    _KINDS.PRODUCT: int(Product),
}
# The core has no bitwise operations: these are applied to the values of all ranks, on each rank.
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _KINDS.BAND: torch.bitwise_and,
    _KINDS.BOR: torch.bitwise_or,
    _KINDS.BXOR: torch.bitwise_xor,
}


def reduction(opts: Any) -> tuple[int, float]:
    """(the core's op, factor before it) of a call's options, or of a ReduceOp itself; a sum without either.

    (-1, 1.0) for a bitwise operation. NotImplementedError for an operation that does not exist here.
    """
    kind = _kind_of(opts)
    op = _OPS.get(kind)
    if op is not None:
        return op, 1.0
    if kind in _BITWISE:
        return -1, 1.0
    if kind == _KINDS.PREMUL_SUM:
        return int(Sum), float(getattr(opts, "reduceOp", opts).__getstate__()[1])
    raise NotImplementedError(f"Sirtaki has no reduction {kind}; it has {', '.join(map(str, (*_OPS, *_BITWISE)))}")


def bitwise(opts: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The function of a bitwise operation."""
    return _BITWISE[_kind_of(opts)]


def bitwise_number(opts: Any) -> int:
    """Another number for each bitwise operation."""
    return int(Min) + list(_BITWISE).index(_kind_of(opts))


def _kind_of(opts: Any) -> Any:
    op = getattr(opts, "reduceOp", opts)
    return _KINDS.SUM if op is None else getattr(op, "op", op)
