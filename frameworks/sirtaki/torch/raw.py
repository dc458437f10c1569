"""One submission for each verb, on checked arguments, without gradients. Each returns a handle for `synchronize`.

`name` has no verb in front; "" lets the core number the call. `reduction` is (op, prescale, postscale, process set id).
`awaited`: the caller synchronizes at once, so that the engine need not be woken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki import naming
from sirtaki.call_site import call_site
from sirtaki.native import core
from sirtaki.torch.handles import submit
from sirtaki.torch.tensors import describe, empty_result, from_buffer

Reduction = tuple[int, float, float, int]
Results = tuple[torch.Tensor, ...]
Convert = Callable[[Results], Any]


def _scaled(reduction: Reduction) -> dict[str, Any]:
    op, prescale, postscale, group = reduction
    return {"op": op, "prescale": prescale, "postscale": postscale, "process_set": group}


def _as_they_are(results: Results) -> Results:
    return results


def start_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    outputs: Sequence[torch.Tensor] | None = None,
    convert: Convert = _as_they_are,
    awaited: bool = False,
) -> int:
    """Several tensors are one unit. outputs: where to write, by default new memory. Result: tuple of the outputs."""
    results = tuple(empty_result(t) for t in tensors) if outputs is None else tuple(outputs)
    described = [describe(t, out) for t, out in zip(tensors, results, strict=True)]
    return submit(
        "allreduce",
        name,
        described,
        lambda work: convert(results),
        keep=(tensors, results),
        awaited=awaited,
        **_scaled(reduction),
    )


def start_broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str, group: int, awaited: bool = False
) -> int:
    """Result: the output, which may be the tensor itself."""
    return submit(
        "broadcast",
        name,
        [describe(tensor, output)],
        lambda work: output,
        root=root,
        process_set=group,
        keep=(tensor, output),
        awaited=awaited,
    )


def _allocated(work: Any, likes: Sequence[torch.Tensor]) -> Results:
    return tuple(
        from_buffer(buffer, shape, like)
        for buffer, shape, like in zip(work.buffers(), work.shapes(), likes, strict=True)
    )


def start_allgather(
    tensors: Sequence[torch.Tensor], name: str, group: int, convert: Convert = _as_they_are, awaited: bool = False
) -> int:
    """Result: tuple of the tensors of all ranks, joined along dimension 0."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
            raise ValueError(f"allgather joins along dimension 0, got a tensor without dimensions: {tensor!r}")
    likes = tuple(tensors)
    described = [describe(t, None) for t in likes]
    return submit(
        "allgather",
        name,
        described,
        lambda work: convert(_allocated(work, likes)),
        process_set=group,
        keep=likes,
        awaited=awaited,
    )


def start_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    convert: Convert = _as_they_are,
    awaited: bool = False,
) -> int:
    """Result: tuple of this rank's rows of each reduced tensor."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
            raise ValueError(f"reducescatter splits dimension 0, got a tensor without dimensions: {tensor!r}")
    likes = tuple(tensors)
    described = [describe(t, None) for t in likes]
    return submit(
        "reducescatter",
        name,
        described,
        lambda work: convert(_allocated(work, likes)),
        keep=likes,
        awaited=awaited,
        **_scaled(reduction),
    )


def start_alltoall(tensor: torch.Tensor, splits: Sequence[int], name: str, group: int, awaited: bool = False) -> int:
    """splits: rows for each rank, [] for equal parts. Result: (output, received_splits as int32)."""

    def finish(work: Any) -> tuple[torch.Tensor, torch.Tensor]:
        (output,) = _allocated(work, [tensor])
        return output, torch.tensor(work.received_splits(), dtype=torch.int32)

    described = [describe(tensor, None)]
    return submit(
        "alltoall", name, described, finish, splits=list(splits), process_set=group, keep=tensor, awaited=awaited
    )


def barrier(group: int) -> None:
    """Blocks until every rank of the set has called it."""
    core.submit(core.VERBS["barrier"], "", [], process_set=group, site=call_site(), awaited=True).wait()


def join() -> int:
    """Blocks until every rank has called it; the last one's rank."""
    work = core.submit(core.VERBS["join"], "", [], site=call_site(), awaited=True)
    work.wait()
    naming.reset()  # as the core does with its own numbers: ranks have made unequal numbers of calls
    return work.value()
