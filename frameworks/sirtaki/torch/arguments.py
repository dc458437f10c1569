"""Arguments that several verbs share."""

from __future__ import annotations

import torch

from sirtaki.naming import next_number
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, require_id
from sirtaki.reduce_ops import Adasum, check_adasum, check_scale, checked_op


def names(verb: str, name: str | None, process_set: int) -> tuple[str, str]:
    """(name of the call, name of its gradient's call), both without the verb.

    The gradient is named after its forward call, so that backward passes may run in another order on each rank. In a
    compiled graph a nameless call stays nameless both ways: the graph is traced once but runs many times.
    """
    if name is not None:
        if not isinstance(name, str):
            raise ValueError(f"name must be a string or None, got {name!r}")
        if not torch.compiler.is_compiling() and not _is_text(name):
            raise ValueError(f"name holds characters that UTF-8 cannot express: {name!r}")
        return name, f"{name}.grad"
    if torch.compiler.is_compiling():
        return "", ""
    return "", f"noname.{next_number(verb, process_set)}.grad"


def _is_text(name: str) -> bool:
    """Whether the name can travel between ranks; half of a surrogate pair cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def reduction(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> tuple[int, float, float, int]:
    """Checks what describes a reduction; ValueError with the wrong value, NotImplementedError where Adasum cannot
    run.
    """
    number = require_id(process_set)
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
