"""One submission for each verb, on checked arguments, without gradients. Each returns a handle for `synchronize`.

`name`: without the verb; "" if the core is to number the call. `reduction`: (op, prescale, postscale, process set id).
`awaited`: the caller synchronizes at once, so the core does not wake the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki.checks import call_numbers
from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.torch.ops.handles import register, submit
from sirtaki.torch.ops.streams import Results as MadeResults
from sirtaki.torch.ops.streams import stream_of
from sirtaki.torch.ops.tensors import Descriptor, check_reducible, describe, empty_result, from_buffer

Reduction = tuple[int, float, float, int]
Results = tuple[torch.Tensor, ...]
Convert = Callable[[Results], Any]


_ALLREDUCE = core.VERBS["allreduce"]


def _scaled(reduction: Reduction) -> dict[str, Any]:
    op, prescale, postscale, group = reduction
    return {"op": op, "prescale": prescale, "postscale": postscale, "process_set": group}


def _as_they_are(results: Results) -> Results:
    return results


def _submit_allreduce(
    tensors: Sequence[torch.Tensor], results: Results, name: str, reduction: Reduction, awaited: bool
) -> tuple[Any, list[Descriptor]]:
    """Kept short: for a small tensor Python takes most of the time."""
    described = list(map(describe, tensors, results))
    op, prescale, postscale, group = reduction
    for tensor in tensors:
        check_reducible(tensor, op)
    work = core.submit(
        _ALLREDUCE,
        f"allreduce.{name}" if name else "",
        described,
        op,
        prescale,
        postscale,
        process_set=group,
        site=call_site(),
        awaited=awaited,
        keep=(tensors, results),
        stream=stream_of(described) or 0,
    )
    return work, described


def allreduce(
    tensors: Sequence[torch.Tensor], name: str, reduction: Reduction, outputs: Sequence[torch.Tensor] | None = None
) -> Results:
    """start_allreduce() and synchronize() in one call."""
    results = tuple(map(empty_result, tensors)) if outputs is None else tuple(outputs)
    work, described = _submit_allreduce(tensors, results, name, reduction, True)
    work.wait(stream_of(described))
    return results


def start_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    outputs: Sequence[torch.Tensor] | None = None,
    convert: Convert = _as_they_are,
) -> int:
    """All tensors are one request. outputs: for the results, by default new tensors. Result: tuple of the outputs."""
    results = tuple(map(empty_result, tensors)) if outputs is None else tuple(outputs)
    work, described = _submit_allreduce(tensors, results, name, reduction, False)
    return register(work, lambda work: convert(results), described)


def start_broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str, group: int, awaited: bool = False
) -> int:
    """Result: the output. It may be the same tensor as the input."""
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


def _start_sized_by_all(
    verb: str, tensors: Sequence[torch.Tensor], name: str, finish: Callable[[Any, Results], Any], **options: Any
) -> int:
    """A call whose result sizes depend on all ranks. finish(work, results) makes its result."""
    likes = tuple(tensors)
    described = [describe(t, None) for t in likes]
    if likes and likes[0].device.type != "cpu":
        made = MadeResults(likes)
        options["allocate"] = made.allocate
        return submit(verb, name, described, lambda work: finish(work, made.take()), keep=likes, **options)

    def on_host(work: Any) -> Any:
        found = zip(work.buffers(), work.shapes(), likes, strict=True)
        return finish(work, tuple(from_buffer(buffer, shape, like) for buffer, shape, like in found))

    return submit(verb, name, described, on_host, keep=likes, **options)


def start_allgather(
    tensors: Sequence[torch.Tensor], name: str, group: int, convert: Convert = _as_they_are, awaited: bool = False
) -> int:
    """Result: tuple of the tensors of all ranks, joined along dimension 0."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
            raise ValueError(f"allgather joins along dimension 0, got a tensor without dimensions: {tensor!r}")
    return _start_sized_by_all(
        "allgather", tensors, name, lambda work, results: convert(results), process_set=group, awaited=awaited
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
        check_reducible(tensor, reduction[0])
    return _start_sized_by_all(
        "reducescatter",
        tensors,
        name,
        lambda work, results: convert(results),
        awaited=awaited,
        **_scaled(reduction),
    )


def start_alltoall(tensor: torch.Tensor, splits: Sequence[int], name: str, group: int, awaited: bool = False) -> int:
    """splits: rows for each rank, [] for equal parts. Result: (output, received_splits as int32)."""

    def finish(work: Any, results: Results) -> tuple[torch.Tensor, torch.Tensor]:
        return results[0], torch.tensor(work.received_splits(), dtype=torch.int32)

    return _start_sized_by_all(
        "alltoall", [tensor], name, finish, splits=list(splits), process_set=group, awaited=awaited
    )


def join(device: int = -1) -> int:
    """Blocks until every rank has called it. Returns the last caller. device: the GPU for allreduces of the others."""
    if device < 0 and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
    core.set_usual_gpu(device)
    work = core.submit(core.VERBS["join"], "", [], site=call_site(), awaited=True)
    work.wait()
    call_numbers.reset()  # ranks have made different numbers of calls; the core resets its numbers, too
    return work.value()
