"""Checks of the arguments that every adapter has in common."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from sirtaki.native import core
from sirtaki.process_sets import MEMBERS_TAG, ProcessSet, require_id
from sirtaki.reduce_ops import Adasum, Average, ReduceOp, check_adasum, check_scale, checked_op

Groups = int | list[list[Any]] | None
Entry = TypeVar("Entry")


def checked_name(name: Any) -> str:
    """Returns the name. ValueError unless it is a string that UTF-8 can encode (no lone surrogates)."""
    if not isinstance(name, str):
        raise ValueError(f"name must be a string or None, got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name has characters that UTF-8 cannot encode: {name!r}") from None
    return name


def reduction(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> tuple[int, float, float, int]:
    """(op, prescale, postscale, process set's id), checked. ValueError with the wrong value; NotImplementedError if
    Adasum cannot run.
    """
    number = require_id(process_set)
    unscaled = type(prescale) is type(postscale) is float and prescale == postscale == 1.0
    if unscaled and type(op) is ReduceOp and op is not Adasum:  # the usual case, which should cost little
        return int(op), 1.0, 1.0, number
    if checked_op(op) == Adasum and core.is_initialized():
        check_adasum(process_set, core.size())
    return (
        int(op),
        check_scale("prescale_factor", prescale),
        check_scale("postscale_factor", postscale),
        number,
    )


def checked_root(root_rank: int) -> int:
    """The root as an integer; ValueError for anything else."""
    if isinstance(root_rank, bool) or not hasattr(root_rank, "__index__"):
        raise ValueError(f"root_rank must be an integer, got {root_rank!r}")
    return root_rank.__index__()


def checked_number(name: str, value: int, largest: int) -> int:
    """The value as an integer; ValueError unless it lies in 0 to `largest`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if not 0 <= value.__index__() <= largest:
        raise ValueError(f"{name} must lie in 0 to {largest}, got {value!r}")
    return value.__index__()


def checked_tag(tag: int) -> int:
    """The tag of a send or receive as an integer; ValueError unless programs may use this tag."""
    return checked_number("tag", tag, MEMBERS_TAG - 1)


def check_devices(**devices: Any) -> None:
    """ValueError unless each is a string. Sirtaki ignores them; Horovod's programs name a device. Any other value is a
    misplaced argument, which would be lost.
    """
    for name, device in devices.items():
        if not isinstance(device, str):
            raise ValueError(f"{name} must be a string, got {device!r}; pass the arguments after it by keyword")


def checked_flag(name: str, value: Any) -> bool:
    """ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return value


def check_unsharded(shard_optimizer_state: bool, optimizer: Any) -> None:
    """ValueError, with the reason, if an optimizer of TensorFlow 1 or Keras 2 is to divide its state."""
    if checked_flag("shard_optimizer_state", shard_optimizer_state):
        raise ValueError(
            f"shard_optimizer_state=True does not work with {type(optimizer).__module__}.{type(optimizer).__name__}: "
            "optimizers of TensorFlow 1 and Keras 2 make their state as whole variables of the model's shapes. Use an "
            "optimizer of Keras 3, or sirtaki.torch"
        )


def check_not_negative(name: str, value: Any) -> None:
    """ValueError unless value is None or a number that is not below 0."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real) or not value >= 0):  # type: ignore[operator]  # Real has >=
        raise ValueError(f"{name} must be a number that is not negative, got {value!r}")


def checked_predivide(factor: float, op: int) -> float:
    """The factor as a float. ValueError unless it is positive, or if it is not 1 and op is not Average."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise ValueError(f"gradient_predivide_factor must be a positive number, got {factor!r}")
    if factor != 1.0 and checked_op(op) != Average:
        raise ValueError("gradient_predivide_factor is not supported with op != Average")
    return float(factor)


def checked_passes(passes: int) -> int:
    """Returns backward_passes_per_step; ValueError unless it is a positive integer."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, got {passes!r}")
    return passes


def checked_groups(num_groups: int, groups: Groups, identity: Callable[[Any], int] = id) -> tuple[int, list[list[Any]]]:
    """(number of equal groups or 0, lists of variables); ValueError for anything else.

    identity: returns equal numbers exactly for the same variable.
    """
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None:
        return 0, []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups should be a non-negative integer or a list of lists of variables, got {groups}")
        return groups, []
    if not isinstance(groups, list) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups should be a non-negative integer or a list of lists of variables, got {groups!r:.80}")
    seen: set[int] = set()
    for variable in (variable for group in groups for variable in group):
        if not (hasattr(variable, "shape") and hasattr(variable, "assign")):
            raise ValueError(f"groups must consist of variables, got {type(variable).__name__} {variable!r:.80}")
        if identity(variable) in seen:
            raise ValueError(f"a variable of shape {tuple(variable.shape)} appears in groups more than once")
        seen.add(identity(variable))
    return 0, [list(group) for group in groups]


def equal_parts(entries: Sequence[Entry], count: int) -> list[list[Entry]]:
    """The entries in order, in `count` lists whose lengths differ by one at most; fewer lists if entries are few."""
    parts = min(count, len(entries)) or 1
    size, larger = divmod(len(entries), parts)
    bounds = [part * size + min(part, larger) for part in range(parts + 1)]
    return [list(entries[a:b]) for a, b in pairwise(bounds)]
