"""The ways to run each verb that `collective_benchmark.py --verb` compares: raw MPI, gloo, and Sirtaki.

`nbytes` is the size of the longer side: the tensor of allreduce, broadcast, alltoall and send, the result of allgather,
the input of reducescatter. MPI and gloo write into memory that is given to them. "Sirtaki" makes its result. "Sirtaki,
out" gets memory, too: allreduce and broadcast work in place, the other verbs have `out`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import collective_ways as ways
import torch
import torch.distributed as dist
from mpi4py import MPI

import sirtaki.torch as hvd

BATCH = 100  # asynchronous calls
BATCH_BYTES = 64 << 10  # the largest size of such a batch
COMM = MPI.COMM_WORLD
gloo_allgather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13 renamed it

# With the memory for the result, and the call's number in a batch. Gives a tensor, a request, a work or a handle.
Call = Callable[[torch.Tensor, int], Any]


@dataclass(frozen=True)
class Verb:
    """One verb on `given`. blocking and started: the calls of each way, by its name."""

    given: torch.Tensor
    length: int  # elements of the result
    blocking: dict[str, Call]
    started: dict[str, Call]
    due: ways.Due

    def blocking_ways(self) -> dict[str, ways.Way]:
        return {name: self._way(call, torch.empty(self.length)) for name, call in self.blocking.items()}

    def batch_ways(self) -> dict[str, ways.Way]:
        """Each starts BATCH calls, then waits for all of them; MPI also makes them one after the other."""
        outs = [torch.empty(self.length) for _ in range(BATCH)]
        one_by_one = {"MPI one by one": self.blocking["MPI blocking"]}
        return {name: self._batch(call, outs) for name, call in (self.started | one_by_one).items()}

    def _way(self, call: Call, out: torch.Tensor) -> ways.Way:
        def run(_: Sequence[int]) -> list[torch.Tensor]:
            result = call(out, 0)
            return [result if isinstance(result, torch.Tensor) else out]

        return ways.Way(run, [self.given], [], self.due)

    def _batch(self, call: Call, outs: list[torch.Tensor]) -> ways.Way:
        def run(_: Sequence[int]) -> list[torch.Tensor]:
            return [_finish(one, out) for one, out in [(call(out, i), out) for i, out in enumerate(outs)]]

        return ways.Way(run, [self.given], [], self.due)


def _finish(started: Any, out: torch.Tensor) -> torch.Tensor:
    """The result of what a call gave."""
    if isinstance(started, torch.Tensor):
        return started
    if isinstance(started, int):
        result = hvd.synchronize(started)
        if result is None:
            return out
        return result[0] if isinstance(result, tuple) else result
    if isinstance(started, MPI.Request):
        started.Wait()
    elif started is not None:
        started.wait()
    return out


def _parts(value: int, result: torch.Tensor) -> list[tuple[int, float]]:
    """Both ends of each rank's part: the rank's own values."""
    part = result.numel() // COMM.size
    edges = ((rank, edge) for rank in range(COMM.size) for edge in (0, part - 1))
    return [(rank * part + edge, float(value + rank)) for rank, edge in edges]


def _root(value: int, result: torch.Tensor) -> list[tuple[int, float]]:
    return [(index, float(value)) for index in (0, result.numel() // 2, -1)]


def allreduce(nbytes: int) -> Verb:
    given = torch.empty(nbytes // 4)
    array, name = given.numpy(), f"allreduce.{nbytes}"
    blocking = {
        "MPI blocking": lambda out, i: COMM.Allreduce(array, out.numpy()),
        "Sirtaki": lambda out, i: hvd.allreduce(given, op=hvd.Sum, name=name),
        "Sirtaki, out": lambda out, i: hvd.allreduce_(given, op=hvd.Sum, name=f"{name}.out"),
    }
    started = {
        "MPI started": lambda out, i: COMM.Iallreduce(array, out.numpy()),
        "Sirtaki": lambda out, i: hvd.allreduce_async(given, op=hvd.Sum, name=f"{name}.{i}"),
    }
    return Verb(given, given.numel(), blocking, started, ways.sums)


def allgather(nbytes: int) -> Verb:
    given = torch.empty(nbytes // 4 // COMM.size)
    array, name = given.numpy(), f"allgather.{nbytes}"
    blocking = {
        "MPI blocking": lambda out, i: COMM.Allgather(array, out.numpy()),
        "gloo": lambda out, i: gloo_allgather(out, given),
        "Sirtaki": lambda out, i: hvd.allgather(given, name=name),
        "Sirtaki, out": lambda out, i: hvd.allgather(given, name=f"{name}.out", out=out),
    }
    started = {
        "MPI started": lambda out, i: COMM.Iallgather(array, out.numpy()),
        "gloo": lambda out, i: gloo_allgather(out, given, async_op=True),
        "Sirtaki": lambda out, i: hvd.allgather_async(given, name=f"{name}.{i}"),
        "Sirtaki, out": lambda out, i: hvd.allgather_async(given, name=f"{name}.out.{i}", out=out),
    }
    return Verb(given, given.numel() * COMM.size, blocking, started, _parts)


def reducescatter(nbytes: int) -> Verb:
    given = torch.empty(nbytes // 4 // COMM.size * COMM.size)
    array, name = given.numpy(), f"reducescatter.{nbytes}"
    blocking = {
        "MPI blocking": lambda out, i: COMM.Reduce_scatter_block(array, out.numpy()),
        "Sirtaki": lambda out, i: hvd.reducescatter(given, op=hvd.Sum, name=name),
        "Sirtaki, out": lambda out, i: hvd.reducescatter(given, op=hvd.Sum, name=f"{name}.out", out=out),
    }
    started = {
        "MPI started": lambda out, i: COMM.Ireduce_scatter_block(array, out.numpy()),
        "Sirtaki": lambda out, i: hvd.reducescatter_async(given, op=hvd.Sum, name=f"{name}.{i}"),
        "Sirtaki, out": lambda out, i: hvd.reducescatter_async(given, op=hvd.Sum, name=f"{name}.out.{i}", out=out),
    }
    return Verb(given, given.numel() // COMM.size, blocking, started, ways.sums)


def broadcast(nbytes: int) -> Verb:
    """In place: the ways with given memory."""
    given = torch.empty(nbytes // 4)
    array, name = given.numpy(), f"broadcast.{nbytes}"
    blocking = {
        "MPI blocking": lambda out, i: (COMM.Bcast(array, 0), given)[1],
        "gloo": lambda out, i: (dist.broadcast(given, 0), given)[1],
        "Sirtaki": lambda out, i: hvd.broadcast(given, 0, name=name),
        "Sirtaki, out": lambda out, i: hvd.broadcast_(given, 0, name=f"{name}.out"),
    }
    started = {"Sirtaki": lambda out, i: hvd.broadcast_async(given, 0, name=f"{name}.{i}")}
    return Verb(given, given.numel(), blocking, started, _root)


def alltoall(nbytes: int) -> Verb:
    given = torch.empty(nbytes // 4 // COMM.size * COMM.size)
    array, name = given.numpy(), f"alltoall.{nbytes}"
    blocking = {
        "MPI blocking": lambda out, i: COMM.Alltoall(array, out.numpy()),
        "gloo": lambda out, i: dist.all_to_all_single(out, given),
        "Sirtaki": lambda out, i: hvd.alltoall(given, name=name),
        "Sirtaki, out": lambda out, i: hvd.alltoall(given, name=f"{name}.out", out=out),
    }
    started = {
        "MPI started": lambda out, i: COMM.Ialltoall(array, out.numpy()),
        "gloo": lambda out, i: dist.all_to_all_single(out, given, async_op=True),
        "Sirtaki": lambda out, i: hvd.alltoall_async(given, name=f"{name}.{i}"),
        "Sirtaki, out": lambda out, i: hvd.alltoall_async(given, name=f"{name}.out.{i}", out=out),
    }
    return Verb(given, given.numel(), blocking, started, _parts)


def send(nbytes: int) -> Verb:
    """Each rank with an even number sends to the next rank; a last one without a partner does nothing."""
    given, peer = torch.empty(nbytes // 4), COMM.rank ^ 1
    if peer >= COMM.size:
        return _alone(given)
    receives = COMM.rank % 2 == 1
    array = given.numpy()
    if receives:
        blocking: dict[str, Call] = {
            "MPI blocking": lambda out, i: COMM.Recv(out.numpy(), peer),
            "gloo": lambda out, i: (dist.recv(out, peer), out)[1],
            "Sirtaki": lambda out, i: hvd.recv(out, peer),
        }
        started: dict[str, Call] = {
            "MPI started": lambda out, i: COMM.Irecv(out.numpy(), peer, i),
            "gloo": lambda out, i: dist.irecv(out, peer, tag=i),
            "Sirtaki": lambda out, i: hvd.irecv(out, peer, tag=i),
        }
    else:
        blocking = {
            "MPI blocking": lambda out, i: (COMM.Send(array, peer), given)[1],
            "gloo": lambda out, i: (dist.send(given, peer), given)[1],
            "Sirtaki": lambda out, i: (hvd.send(given, peer), given)[1],
        }
        started = {
            "MPI started": lambda out, i: COMM.Isend(array, peer, i),
            "gloo": lambda out, i: dist.isend(given, peer, tag=i),
            "Sirtaki": lambda out, i: hvd.isend(given, peer, tag=i),
        }
    due = lambda value, result: [(i, float(value + COMM.rank // 2 * 2)) for i in (0, -1)]  # noqa: E731
    return Verb(given, given.numel(), blocking, started, due if receives else lambda value, result: [])


def _alone(given: torch.Tensor) -> Verb:
    def nothing(out: torch.Tensor, i: int) -> torch.Tensor:
        return given

    names = ("MPI blocking", "gloo", "Sirtaki"), ("MPI started", "gloo", "Sirtaki")
    blocking, started = (dict.fromkeys(each, nothing) for each in names)
    return Verb(given, given.numel(), blocking, started, lambda value, result: [])


MAKERS = {"allreduce": allreduce, "allgather": allgather, "reducescatter": reducescatter}
MAKERS |= {"broadcast": broadcast, "alltoall": alltoall, "send": send}
