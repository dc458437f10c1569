"""reducescatter: the reduction of all tensors, of which each rank gets some rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average
from sirtaki.torch.compression import Compression, Compressor
from sirtaki.torch.ops import autograd, plain_calls, verbs
from sirtaki.torch.ops.arguments import names, reduction
from sirtaki.torch.ops.tensors import check_outputs, check_tensors


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """This rank's rows of the reduced tensor; the first `rows % ranks` ranks get one row more, some may get none.

    op: anything but Adasum. Shapes must be equal on all ranks. out: contiguous memory for the result, of the tensor's
    dtype and exactly the result's shape; returned. By default a new tensor. It must not overlap the tensor, and
    compression must be none. Differentiable without out for Average and Sum: the gradients of all parts joined, times
    the number of ranks for Sum (see sirtaki.torch.ops.autograd).

    >>> hvd.reducescatter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), op=hvd.Sum)  # on one rank: all rows
    tensor([[1., 2.],
            [3., 4.]])
    """
    if out is not None and compression is not Compression.none:
        raise ValueError(f"out needs Compression.none, got {compression!r}: the result has the compressed dtype")
    how = reduction(op, prescale_factor, postscale_factor, process_set)
    call, grad = names("reducescatter", name, how[3])
    if compression is Compression.none:
        result = plain_calls.run(plain_calls.REDUCESCATTER, tensor, out, call, how)
        if result is not None:
            return result
    if out is None:
        return _reduce_scatter([tensor], call, grad, how, compression)[0]
    if torch.compiler.is_compiling():
        return out.copy_(autograd.grouped_reducescatter([tensor], call, grad, *how)[0])
    listed = check_tensors([tensor])
    return verbs.reducescatter(listed, call, how, check_outputs([out], listed))[0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> int:
    """As reducescatter, without waiting and without gradient: a handle whose result is the tensor.

    >>> hvd.synchronize(hvd.reducescatter_async(torch.tensor([1, 2]), op=hvd.Sum))
    tensor([1, 2])
    """
    how = reduction(op, prescale_factor, postscale_factor, process_set)
    call, _ = names("reducescatter", name, how[3])
    if (handle := plain_calls.start(plain_calls.REDUCESCATTER, tensor, out, call, how)) is not None:
        return handle
    outputs = None if out is None else check_outputs([out], check_tensors([tensor]))
    return verbs.start_reducescatter([tensor], call, how, outputs, convert=lambda results: results[0])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter of several tensors as one unit: a list. Differentiable.

    >>> hvd.grouped_reducescatter([torch.tensor([1.0]), torch.tensor([2.0])])
    [tensor([1.]), tensor([2.])]
    """
    how = reduction(op, prescale_factor, postscale_factor, process_set)
    call, grad = names("reducescatter", name, how[3])
    return _reduce_scatter(tensors, call, grad, how, compression)


def _reduce_scatter(
    tensors: Sequence[torch.Tensor],
    call: str,
    grad: str,
    how: tuple[int, float, float, int],
    compression: type[Compressor],
) -> list[torch.Tensor]:
    listed = tensors if torch.compiler.is_compiling() else check_tensors(tensors)
    pairs = [compression.compress(tensor) for tensor in listed]
    wires = [wire for wire, _ in pairs]
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(wire.requires_grad for wire in wires)):
        results = autograd.grouped_reducescatter(wires, call, grad, *how)
    else:
        results = list(verbs.reducescatter(check_tensors(wires), call, how))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As grouped_reducescatter, without waiting and without gradient: one handle, whose result is a tuple.

    >>> hvd.synchronize(hvd.grouped_reducescatter_async([torch.tensor([1]), torch.tensor([2])], op=hvd.Max))
    (tensor([1]), tensor([2]))
    """
    how = reduction(op, prescale_factor, postscale_factor, process_set)
    call, _ = names("reducescatter", name, how[3])
    return verbs.start_reducescatter(check_tensors(tensors), call, how)
