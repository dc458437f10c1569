"""Starts and stops what collective_benchmark.py compares, and tells what there is: hosts, cores, versions."""

import os
import platform
import socket
from collections import Counter
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from synthetic_report import control, data_plane

import sirtaki.torch as hvd
from sirtaki import __version__


def start_sirtaki(comm: MPI.Comm) -> None:
    hvd.init()
    if hvd.size() != comm.size:
        raise SystemExit(f"mpi4py sees {comm.size} ranks, Sirtaki {hvd.size()}: they use two different MPI libraries")
    if comm.size == 1:
        raise SystemExit("1 rank has nobody to reduce with; start more, e.g. with `sirtakirun -np 2`")
    hvd.allreduce(torch.ones(1))  # shows what carries data


def start_gloo(comm: MPI.Comm) -> None:
    names = comm.allgather(socket.gethostname())
    one_host = len(set(names)) == 1
    if one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("", 0))
        port = comm.bcast(free.getsockname()[1])
    place = "127.0.0.1" if one_host else names[0]
    store = dist.TCPStore(place, port, comm.size, is_master=comm.rank == 0)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)


def start_horovod(comm: MPI.Comm) -> tuple[ModuleType | None, str]:
    """Horovod for torch, and ""; or None and why it takes no part, the same on all ranks."""
    module, complaint = None, ""
    try:
        import horovod.torch as module

        if module.__doc__ and module.__doc__.startswith("sirtaki"):  # the package sirtaki-horovod
            raise ImportError("it is Sirtaki by Horovod's name")
    except (ImportError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "horovod"
        complaint = "is not installed" if absent else f"cannot be imported: {error}"
    if not any(complaints := comm.allgather(complaint)):
        module.init()
        if module.size() != comm.size:
            complaint = f"sees {module.size()} of {comm.size} ranks: it was built without this MPI"
        complaints = comm.allgather(complaint)
    complaint = next(filter(None, complaints), "")
    return (None if complaint else module), complaint


def versions(horovod: ModuleType | None) -> dict[str, str]:
    found = {"sirtaki": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in ("mpi4py", "numpy"):
        found[name] = metadata.version(name)
    if horovod:
        import horovod as package

        found["horovod"] = package.__version__
    return found


def crowded(ranks: list[dict[str, Any]]) -> list[str]:
    """A warning for each host that has more ranks than cores for them."""
    notes = []
    for host, number in Counter(rank["host"] for rank in ranks).items():
        cores = set().union(*(rank["cores"] for rank in ranks if rank["host"] == host))
        if number > len(cores):
            notes.append(f"Warning: {number} ranks share {len(cores)} core(s) of {host}; all ways wait for cores, too")
    return notes


class Peers:
    """All that takes part, started on every rank of `comm`. facts: for the header and the JSON file."""

    def __init__(self, comm: MPI.Comm) -> None:
        start_sirtaki(comm)
        start_gloo(comm)
        self.horovod, complaint = start_horovod(comm)
        here = {
            "host": socket.gethostname(),
            "threads": torch.get_num_threads(),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        ranks = comm.allgather(here)
        self.facts: dict[str, Any] = {
            "size": comm.size,
            "hosts": dict(Counter(rank["host"] for rank in ranks)),
            "ranks": ranks,
            "data_plane": data_plane(),
            "control": control(),
            "mpi": " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split()),
            "versions": versions(self.horovod),
            "absent": {"Horovod": complaint} if complaint else {},
            "warnings": crowded(ranks),
            "load_average": os.getloadavg()[0],
        }

    def header(self) -> list[str]:
        facts = self.facts
        hosts = ", ".join(f"{host} ({number})" for host, number in facts["hosts"].items())
        threads = "/".join(map(str, sorted({rank["threads"] for rank in facts["ranks"]})))
        return [
            f"Ranks: {facts['size']} on {hosts}, {threads} thread(s) each",
            f"Load of the first host before: {facts['load_average']:.1f}; a calm one gives figures that can be trusted",
            f"Sirtaki's data plane: {facts['data_plane']}; control: {facts['control']}",
            f"MPI: {facts['mpi']}",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
            *(f"{name} {why}, so it takes no part" for name, why in facts["absent"].items()),
            *facts["warnings"],
        ]

    def stop(self) -> None:
        if self.horovod:
            self.horovod.shutdown()
        dist.destroy_process_group()
        hvd.shutdown()
