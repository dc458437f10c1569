"""allreduce: every rank gets the reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import choose_op
from sirtaki.torch.compression import Compression, Compressor
from sirtaki.torch.ops import autograd, plain_calls, verbs
from sirtaki.torch.ops.arguments import names, reduction
from sirtaki.torch.ops.tensors import check_tensor, check_tensors


def _one(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return results[0]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A new tensor of the same shape and dtype: postscale * op(prescale * tensor of each rank). Differentiable.

    op is Average by default; integers are summed, divided and truncated toward zero. 16-bit floats are accumulated in
    float32. Gradient: the same allreduce of the gradient (see sirtaki.torch.ops.autograd). Min, Max, Product have none.

    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum, prescale_factor=0.5)  # on one rank
    tensor([0.5000, 1.0000])
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, grad = names("allreduce", name, how[3])
    if compression is Compression.none:
        result = plain_calls.run(plain_calls.ALLREDUCE, tensor, None, call, how)
        if result is not None:
            return result
    if not torch.compiler.is_compiling():
        check_tensor(tensor)
    wire, ctx = compression.compress(tensor)
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and wire.requires_grad):
        result = autograd.allreduce(wire, call, grad, *how)
    else:
        result = verbs.allreduce([wire], call, how)[0]
    return compression.decompress(result, ctx)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As allreduce, without waiting and without gradient: a handle whose result is the new tensor.

    >>> handle = hvd.allreduce_async(torch.tensor([1.0, 2.0]), name="loss")
    >>> hvd.synchronize(handle)
    tensor([1., 2.])
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    if (handle := plain_calls.start(plain_calls.ALLREDUCE, tensor, None, call, how)) is not None:
        return handle
    check_tensor(tensor)
    return verbs.start_allreduce([tensor], call, how, convert=_one)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As allreduce_async, with the result written into the tensor.

    >>> tensor = torch.tensor([1, 7])
    >>> hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Max)) is tensor
    True
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    if (handle := plain_calls.start(plain_calls.ALLREDUCE, tensor, tensor, call, how)) is not None:
        return handle
    return verbs.start_allreduce([tensor], call, how, outputs=[tensor], convert=_one)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As allreduce, in place: returns the tensor itself. Not differentiable.

    >>> hvd.allreduce_(torch.ones(3, dtype=torch.bfloat16), op=hvd.Sum)
    tensor([1., 1., 1.], dtype=torch.bfloat16)
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    if (result := plain_calls.run(plain_calls.ALLREDUCE, tensor, tensor, call, how)) is not None:
        return result
    return verbs.allreduce([tensor], call, how, outputs=[tensor])[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allreduce of several tensors as one unit: a list of new tensors. Shapes and dtypes may differ. Differentiable.

    >>> hvd.grouped_allreduce([torch.tensor([1.0]), torch.tensor([[2, 3]])], op=hvd.Sum)
    [tensor([1.]), tensor([[2, 3]])]
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, grad = names("allreduce", name, how[3])
    listed = tensors if torch.compiler.is_compiling() else check_tensors(tensors)
    pairs = [compression.compress(tensor) for tensor in listed]
    wires = [wire for wire, _ in pairs]
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(wire.requires_grad for wire in wires)):
        results = autograd.grouped_allreduce(wires, call, grad, *how)
    else:
        results = verbs.allreduce(check_tensors(wires), call, how)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As grouped_allreduce, without waiting and without gradient: one handle, whose result is a tuple.

    >>> hvd.synchronize(hvd.grouped_allreduce_async([torch.tensor([1.0]), torch.tensor([2.0])]))
    (tensor([1.]), tensor([2.]))
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    return verbs.start_allreduce(check_tensors(tensors), call, how)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As grouped_allreduce_async, with the results written into the tensors.

    >>> tensors = [torch.tensor([1.0]), torch.tensor([2.0])]
    >>> hvd.synchronize(hvd.grouped_allreduce_async_(tensors))[1] is tensors[1]
    True
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    listed = check_tensors(tensors)
    return verbs.start_allreduce(listed, call, how, outputs=listed)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As grouped_allreduce, in place: the tensors themselves. Not differentiable.

    >>> hvd.grouped_allreduce_([torch.tensor([4]), torch.tensor([5])], op=hvd.Min)
    [tensor([4]), tensor([5])]
    """
    how = reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)
    call, _ = names("allreduce", name, how[3])
    listed = check_tensors(tensors)
    return list(verbs.allreduce(listed, call, how, outputs=listed))
