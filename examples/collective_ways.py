"""The ways to allreduce that collective_benchmark.py compares, and a plain copy as the limit that memory sets.

Each maker takes buffers and gives a Way, whose call takes the order in which to submit the tensors and returns when
all results are there. All ways of a comparison work on the same memory in turn, so that none has better pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

import sirtaki.torch as sirtaki


class Buffers:
    """Float32 tensors to reduce, `given`, and as many of the same shapes for results that go elsewhere, `apart`."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self.given = [torch.empty(tuple(shape)) for shape in shapes]
        self.apart = [torch.empty(tuple(shape)) for shape in shapes]


# The values due at some places of a result, if rank r's tensors held `value + r`.
Due = Callable[[int, torch.Tensor], list[tuple[int, float]]]


def sums(value: int, result: torch.Tensor) -> list[tuple[int, float]]:
    """The ends and the middle of a sum over the ranks."""
    ranks = MPI.COMM_WORLD.size
    return [(index, float(value * ranks + sum(range(ranks)))) for index in (0, result.numel() // 2, -1)]


def own(value: int, result: torch.Tensor) -> list[tuple[int, float]]:
    """The ends and the middle of the rank's own values."""
    return [(index, float(value + MPI.COMM_WORLD.rank)) for index in (0, result.numel() // 2, -1)]


@dataclass(frozen=True)
class Way:
    call: Callable[[Sequence[int]], list[torch.Tensor] | None]  # gives its results, unless they are in `results`
    given: list[torch.Tensor]  # rewritten before each call
    results: list[torch.Tensor]
    due: Due = sums
    any_order: bool = False  # each rank may submit in an order of its own; otherwise all must use the same


Maker = Callable[[Buffers], Way]


def mpi_in_place(buffers: Buffers) -> Way:
    arrays = [tensor.numpy() for tensor in buffers.given]

    def call(order: Sequence[int]) -> None:
        for index in order:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, arrays[index])

    return Way(call, buffers.given, buffers.given)


def mpi_out_of_place(buffers: Buffers) -> Way:
    pairs = [(given.numpy(), apart.numpy()) for given, apart in zip(buffers.given, buffers.apart, strict=True)]

    def call(order: Sequence[int]) -> None:
        for index in order:
            MPI.COMM_WORLD.Allreduce(*pairs[index])

    return Way(call, buffers.given, buffers.apart)


def gloo(buffers: Buffers) -> Way:
    def call(order: Sequence[int]) -> None:
        for work in [dist.all_reduce(buffers.given[index], async_op=True) for index in order]:
            work.wait()

    return Way(call, buffers.given, buffers.given)


def copy(buffers: Buffers) -> Way:
    """Each rank copies as many bytes, all at the same time."""
    pairs = [(apart.numpy(), given.numpy()) for given, apart in zip(buffers.given, buffers.apart, strict=True)]

    def call(order: Sequence[int]) -> None:
        for index in order:
            np.copyto(*pairs[index])

    return Way(call, buffers.given, buffers.apart, due=own)


def synchronous(hvd: ModuleType) -> Maker:
    """One blocking call of Horovod's interface for the one tensor."""

    def make(buffers: Buffers) -> Way:
        (tensor,) = buffers.given
        name = f"benchmark.{tensor.numel()}"
        return Way(lambda _: hvd.allreduce_(tensor, name=name, op=hvd.Sum), buffers.given, buffers.given)

    return make


def asynchronous(hvd: ModuleType) -> Maker:
    def make(buffers: Buffers) -> Way:
        names = [f"gradient.{index}" for index in range(len(buffers.given))]

        def call(order: Sequence[int]) -> None:
            handles = [hvd.allreduce_async_(buffers.given[i], name=names[i], op=hvd.Sum) for i in order]
            for handle in handles:
                hvd.synchronize(handle)

        return Way(call, buffers.given, buffers.given, any_order=True)

    return make


def grouped(hvd: ModuleType) -> Maker:
    def make(buffers: Buffers) -> Way:
        call = lambda _: hvd.grouped_allreduce_(buffers.given, name="gradients", op=hvd.Sum)  # noqa: E731
        return Way(call, buffers.given, buffers.given)

    return make


MPI_WAYS: dict[str, Maker] = {"MPI in place": mpi_in_place, "MPI out of place": mpi_out_of_place}


def of_one_tensor(horovod: ModuleType | None) -> dict[str, Maker]:
    """The ways for one tensor, by name."""
    theirs = {"Horovod": synchronous(horovod)} if horovod else {}
    return {**MPI_WAYS, "gloo": gloo, **theirs, "Sirtaki": synchronous(sirtaki), "copy": copy}


def of_many_tensors(horovod: ModuleType | None) -> dict[str, Maker]:
    """The ways for many tensors, one call each or all in one call."""
    theirs = {"Horovod, asynchronous": asynchronous(horovod), "Horovod, grouped": grouped(horovod)} if horovod else {}
    ours = {"Sirtaki, asynchronous": asynchronous(sirtaki), "Sirtaki, grouped": grouped(sirtaki)}
    one_by_one = {f"{name}, one by one": make for name, make in MPI_WAYS.items()}
    return {**one_by_one, "gloo, asynchronous": gloo, **theirs, **ours, "copy, one by one": copy}
