"""The ways to allreduce that collective_benchmark.py compares: raw MPI, torch.distributed's gloo, and Sirtaki.

Each maker takes the buffers and returns the call to time: it returns when the sums are in the buffers.
"""

import os
import platform
import random
import socket
from collections.abc import Callable

import resnet
import torch
import torch.distributed as dist
from mpi4py import MPI
from synthetic_report import data_plane

import sirtaki.torch as hvd
from sirtaki import __version__

Call = Callable[[], None]


def start(comm: MPI.Comm) -> dict[str, str]:
    """Starts Sirtaki and gloo on the ranks of `comm`; what there is, for the header."""
    hvd.init()
    if hvd.size() != comm.size:
        raise SystemExit(
            f"mpi4py sees {comm.size} ranks and Sirtaki {hvd.size()}: they use two different MPI libraries"
        )
    hosts = comm.allgather(socket.gethostname())
    one_host = len(set(hosts)) == 1
    if one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    place = "127.0.0.1" if one_host else hosts[0]
    with socket.socket() as free:
        free.bind(("", 0))
        port = comm.bcast(free.getsockname()[1])
    store = dist.TCPStore(place, port, comm.size, is_master=comm.rank == 0)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    return {
        "Ranks": f"{comm.size} on {len(set(hosts))} host(s), {torch.get_num_threads()} thread(s) each",
        "Sirtaki's data plane": data_plane(),
        "MPI": " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split()),
        "Versions": f"sirtaki {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }


def stop() -> None:
    dist.destroy_process_group()
    hvd.shutdown()


def resnet50_shapes() -> list[torch.Size]:
    with torch.device("meta"):
        return [parameter.shape for parameter in resnet.make("resnet50").parameters()]


def mpi(buffer: torch.Tensor) -> Call:
    array = buffer.numpy()
    return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)


def gloo(buffer: torch.Tensor) -> Call:
    return lambda: dist.all_reduce(buffer)


def sirtaki(buffer: torch.Tensor) -> Call:
    name = f"benchmark.{buffer.numel()}"
    return lambda: hvd.allreduce_(buffer, name=name, op=hvd.Sum)


def mpi_one_by_one(buffers: list[torch.Tensor]) -> Call:
    arrays = [buffer.numpy() for buffer in buffers]

    def call() -> None:
        for array in arrays:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

    return call


def gloo_asynchronous(buffers: list[torch.Tensor]) -> Call:
    def call() -> None:
        for work in [dist.all_reduce(buffer, async_op=True) for buffer in buffers]:
            work.wait()

    return call


def sirtaki_asynchronous(buffers: list[torch.Tensor]) -> Call:
    """Each rank submits in an order of its own, new every time, as backward passes may."""
    order = random.Random(MPI.COMM_WORLD.rank)
    numbered = list(enumerate(buffers))

    def call() -> None:
        order.shuffle(numbered)
        handles = [hvd.allreduce_async_(buffer, name=f"gradient.{index}", op=hvd.Sum) for index, buffer in numbered]
        for handle in handles:
            hvd.synchronize(handle)

    return call


def sirtaki_grouped(buffers: list[torch.Tensor]) -> Call:
    return lambda: hvd.grouped_allreduce_(buffers, name="gradients", op=hvd.Sum)


SYNCHRONOUS: dict[str, Callable[[torch.Tensor], Call]] = {"mpi": mpi, "gloo": gloo, "sirtaki": sirtaki}

OURS = "Sirtaki, asynchronous, any order"
# name: (maker, whether it takes one flat buffer)
GRADIENTS: dict[str, tuple[Callable[[list[torch.Tensor]], Call], bool]] = {
    "MPI, one by one": (mpi_one_by_one, False),
    "MPI, one flat buffer": (lambda buffers: mpi(buffers[0]), True),
    "gloo, asynchronous": (gloo_asynchronous, False),
    "gloo, one flat buffer": (lambda buffers: gloo(buffers[0]), True),
    OURS: (sirtaki_asynchronous, False),
    "Sirtaki, grouped": (sirtaki_grouped, False),
    "Sirtaki, one flat buffer": (lambda buffers: sirtaki(buffers[0]), True),
}
