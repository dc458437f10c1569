"""How the values of the ranks are combined, and the rule for the older `average=` argument."""

from __future__ import annotations

import enum
import math
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sirtaki.process_sets import ProcessSet


class ReduceOp(enum.IntEnum):
    """The numbers are those of the core and of Horovod, so programs may store them."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

_KNOWN = frozenset(ReduceOp)


def checked_op(op: int) -> int:
    """Returns op; ValueError if it is no reduction."""
    if isinstance(op, bool) or op not in _KNOWN:
        raise ValueError(f"op must be one of {[o.name for o in ReduceOp]}, got {op!r}")
    return op


def choose_op(average: bool | None, op: int | None) -> int:
    """The op that the two arguments mean. Without either it is Average; ValueError if both are given."""
    if average is None:
        return Average if op is None else checked_op(op)
    if op is not None:
        raise ValueError(f"give op or average, not both (op={op!r}, average={average!r})")
    warnings.warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=4)
    return Average if average else Sum


def check_scale(which: str, value: float) -> float:
    """Returns the factor as a float; ValueError if it is not a finite number."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{which} must be a number, got {value!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{which} must be finite, got {value!r}")
    return float(value)


def check_adasum(process_set: ProcessSet, size: int) -> None:
    """NotImplementedError unless Adasum can run: on the global process set, with a power of two as its size."""
    if process_set.process_set_id != 0:
        raise NotImplementedError(f"Adasum works on the global process set only, not on {process_set}")
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of 2, this job has {size}")
