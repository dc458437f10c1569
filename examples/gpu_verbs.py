"""The ways of each verb that gpu_collective_benchmark.py compares, into memory that is given."""

from collections.abc import Callable

import torch
import torch.distributed as dist

import sirtaki.torch as hvd

VERBS = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall")
# Takes the tensors that hold this rank's values, gives those that hold the result.
Call = Callable[[list[torch.Tensor]], list[torch.Tensor]]

# torch 2.13 has renamed these two.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def due(verb: str, value: int) -> int:
    """The last element of the result when each rank gave `value` plus its rank."""
    if verb == "broadcast":
        return value
    if verb in ("allgather", "alltoall"):
        return value + hvd.size() - 1
    return value * hvd.size() + sum(range(hvd.size()))


def ways(verb: str, given: torch.Tensor) -> dict[str, Call]:
    """By torch.distributed and by Sirtaki. The size of `given` is that of the longer side: allgather sends a part."""
    return {"torch": _way(verb, given, _by_torch), "Sirtaki": _way(verb, given, _by_sirtaki)}


def _way(verb: str, given: torch.Tensor, call: Callable[[str, torch.Tensor, torch.Tensor], object]) -> Call:
    """Each way has a result of its own, so that the check cannot see the other's."""
    part = given[: given.numel() // hvd.size()]
    own = part if verb == "allgather" else given
    result = (
        given if verb in ("allreduce", "broadcast") else torch.empty_like(part if verb == "reducescatter" else given)
    )

    def run(_: list[torch.Tensor]) -> list[torch.Tensor]:
        call(verb, own, result)
        return [result]

    return run


def _by_torch(verb: str, own: torch.Tensor, result: torch.Tensor) -> None:
    if verb == "allreduce":
        dist.all_reduce(own)
    elif verb == "broadcast":
        dist.broadcast(own, 0)
    elif verb == "reducescatter":
        _scatter(result, own)
    elif verb == "allgather":
        _gather(result, own)
    else:
        dist.all_to_all_single(result, own)


def _by_sirtaki(verb: str, own: torch.Tensor, result: torch.Tensor) -> None:
    name = f"bench.{verb}.{own.nbytes}"
    if verb == "allreduce":
        hvd.allreduce_(own, name=name, op=hvd.Sum)
    elif verb == "broadcast":
        hvd.broadcast_(own, 0, name=name)
    elif verb == "reducescatter":
        hvd.reducescatter(own, name=name, op=hvd.Sum, out=result)
    elif verb == "allgather":
        hvd.allgather(own, name=name, out=result)
    else:
        hvd.alltoall(own, name=name, out=result)


def bus_share(verb: str) -> float:
    """Bytes that each GPU sends, as a share of the size: what nccl-tests call bus bandwidth."""
    n = hvd.size()
    return {"allreduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(verb, (n - 1) / n)
