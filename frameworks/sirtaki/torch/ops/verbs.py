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


Submitted = tuple[Any, Callable[[Any], Any], list[Descriptor]]  # work, what makes its result, tensors


def _submit_changed(
    verb: str,
    tensors: Sequence[torch.Tensor],
    name: str,
    finish: Callable[[Any, Results], Any],
    outputs: Sequence[torch.Tensor] | None,
    **options: Any,
) -> Submitted:
    """A call whose results have other shapes than its tensors. finish(work, results) makes its result.

    outputs: where to write, by default memory of the core. If one has another size than the result, waiting raises.
    """
    likes = tuple(tensors)
    if outputs is None:
        described = [describe(tensor, None) for tensor in likes]
    else:
        described = list(map(describe, likes, outputs))
        options["rooms"] = [output.nbytes for output in outputs]
    stream = stream_of(described)
    made = None
    if stream is not None:
        made = MadeResults(likes)
        options |= {"allocate": made.allocate, "stream": stream}

    def on_host(work: Any) -> Any:
        found = zip(work.buffers(), work.shapes(), likes, strict=True)
        return finish(work, tuple(from_buffer(buffer, shape, like) for buffer, shape, like in found))

    if outputs is not None:
        results = tuple(outputs)
        make = lambda work: finish(work, results)  # noqa: E731
    elif made is not None:
        make = lambda work: finish(work, made.take())  # noqa: E731
    else:
        make = on_host
    full_name = f"{verb}.{name}" if name else ""
    keep = (likes, outputs)
    work = core.submit(core.VERBS[verb], full_name, described, site=call_site(), keep=keep, **options)
    return work, make, described


def _result(submitted: Submitted) -> Any:
    """Waits. Needs no handle."""
    work, make, described = submitted
    work.wait(stream_of(described))
    return make(work)


def _submit_allgather(
    tensors: Sequence[torch.Tensor],
    name: str,
    group: int,
    outputs: Sequence[torch.Tensor] | None,
    convert: Convert,
    awaited: bool,
) -> Submitted:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
            raise ValueError(f"allgather joins along dimension 0, got a tensor without dimensions: {tensor!r}")
    finish = lambda work, results: convert(results)  # noqa: E731
    return _submit_changed("allgather", tensors, name, finish, outputs, process_set=group, awaited=awaited)


def start_allgather(
    tensors: Sequence[torch.Tensor],
    name: str,
    group: int,
    outputs: Sequence[torch.Tensor] | None = None,
    convert: Convert = _as_they_are,
) -> int:
    """Result: tuple of the tensors of all ranks, joined along dimension 0."""
    return register(*_submit_allgather(tensors, name, group, outputs, convert, False))


def allgather(
    tensors: Sequence[torch.Tensor], name: str, group: int, outputs: Sequence[torch.Tensor] | None = None
) -> Results:
    """start_allgather and synchronize in one."""
    return _result(_submit_allgather(tensors, name, group, outputs, _as_they_are, True))


def _submit_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    outputs: Sequence[torch.Tensor] | None,
    convert: Convert,
    awaited: bool,
) -> Submitted:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
            raise ValueError(f"reducescatter splits dimension 0, got a tensor without dimensions: {tensor!r}")
        check_reducible(tensor, reduction[0])
    finish = lambda work, results: convert(results)  # noqa: E731
    return _submit_changed("reducescatter", tensors, name, finish, outputs, awaited=awaited, **_scaled(reduction))


def start_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    outputs: Sequence[torch.Tensor] | None = None,
    convert: Convert = _as_they_are,
) -> int:
    """Result: tuple of this rank's rows of each reduced tensor."""
    return register(*_submit_reducescatter(tensors, name, reduction, outputs, convert, False))


def reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str,
    reduction: Reduction,
    outputs: Sequence[torch.Tensor] | None = None,
) -> Results:
    """start_reducescatter and synchronize in one."""
    return _result(_submit_reducescatter(tensors, name, reduction, outputs, _as_they_are, True))


class Pending:
    """A request in given memory. done(): whether wait() returns at once. wait(): on the current stream of a GPU."""

    def __init__(self, submitted: Submitted) -> None:
        self._work, _, self._described = submitted
        self.done: Callable[[], bool] = self._work.done

    def wait(self) -> None:
        self._work.wait(stream_of(self._described))


def submit_reducescatter(
    tensors: Sequence[torch.Tensor], name: str, reduction: Reduction, outputs: Sequence[torch.Tensor]
) -> Pending:
    """start_reducescatter without a handle."""
    return Pending(_submit_reducescatter(tensors, name, reduction, outputs, _as_they_are, False))


def submit_allgather(
    tensors: Sequence[torch.Tensor], name: str, group: int, outputs: Sequence[torch.Tensor]
) -> Pending:
    """start_allgather without a handle."""
    return Pending(_submit_allgather(tensors, name, group, outputs, _as_they_are, False))


def _submit_alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int],
    name: str,
    group: int,
    output: torch.Tensor | None,
    awaited: bool,
    root: int = -1,
) -> Submitted:
    def finish(work: Any, results: Results) -> tuple[torch.Tensor, torch.Tensor]:
        return results[0], torch.tensor(work.received_splits(), dtype=torch.int32)

    outputs = None if output is None else [output]
    options = {"splits": list(splits), "process_set": group, "awaited": awaited, "root": root}
    return _submit_changed("alltoall", [tensor], name, finish, outputs, **options)


def start_alltoall(
    tensor: torch.Tensor, splits: Sequence[int], name: str, group: int, output: torch.Tensor | None = None
) -> int:
    """splits: rows for each rank, [] for equal parts. Result: (output, received_splits as int32)."""
    return register(*_submit_alltoall(tensor, splits, name, group, output, False))


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int],
    name: str,
    group: int,
    output: torch.Tensor | None = None,
    root: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """start_alltoall and synchronize in one. root: of a gather or scatter; the ranks compare it."""
    return _result(_submit_alltoall(tensor, splits, name, group, output, True, root))


def join(device: int = -1) -> int:
    """Blocks until every rank has called it. Returns the last caller. device: the GPU for allreduces of the others."""
    if device < 0 and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
    core.set_usual_gpu(device)
    work = core.submit(core.VERBS["join"], "", [], site=call_site(), awaited=True)
    work.wait()
    call_numbers.reset()  # ranks have made different numbers of calls; the core resets its numbers, too
    return work.value()
