"""The usual call of a verb: one plain tensor in host memory, without a gradient. The core reads it by itself.

Each function returns None, without any effect, for all other calls. Then the caller takes the longer way, which handles
every case and refuses wrong arguments.
"""

from __future__ import annotations

from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.torch.ops.handles import Finish, register
from sirtaki.torch.ops.tensors import HOST

ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER = (
    core.VERBS[name] for name in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
)
Reduction = tuple[int, float, float, int]

_ON_HOST = ((0, 0, 0, (), HOST),)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling
_needs_gradients = torch.is_grad_enabled


def moved(process_set: int) -> Reduction:
    """For verbs that do not reduce."""
    return 1, 1.0, 1.0, process_set


def run(
    verb: int, tensor: Any, out: torch.Tensor | None, name: str, how: Reduction, root: int = -1, tag: int = 0
) -> torch.Tensor | None:
    """The result: `out`, by default a new tensor. Waits. name: without the verb, "" if the core is to number it."""
    if not _is_plain(tensor, out):
        return None
    op, prescale, postscale, group = how
    return core.start_call(verb, tensor, out, name, op, prescale, postscale, root, group, call_site(), True, tag)


def start(
    verb: int,
    tensor: Any,
    out: torch.Tensor | None,
    name: str,
    how: Reduction,
    root: int = -1,
    tag: int = 0,
    finish: Finish = core.Work.outcome,
) -> int | None:
    """As run(), without waiting: a handle. finish(work) makes its result."""
    if not _is_plain(tensor, out):
        return None
    op, prescale, postscale, group = how
    work = core.start_call(verb, tensor, out, name, op, prescale, postscale, root, group, call_site(), False, tag)
    return None if work is None else register(work, finish, _ON_HOST)


def _is_plain(tensor: Any, out: torch.Tensor | None) -> bool:
    if _is_compiling() or type(tensor) not in _PLAIN_TYPES:
        return False
    if out is None or out is tensor:
        return not (tensor.requires_grad and _needs_gradients())
    return type(out) in _PLAIN_TYPES and not ((tensor.requires_grad or out.requires_grad) and _needs_gradients())
