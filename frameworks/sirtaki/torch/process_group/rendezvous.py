"""How the processes of torch.distributed find each other where a starter of Sirtaki's has started them.

torch's "env://" wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Under sirtakirun, mpiexec and srun they need
not be set: the engine knows the ranks, and sends all of them the address of the store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from sirtaki import runtime, starters
from sirtaki.exchange import broadcast_object
from sirtaki.native import core
from sirtaki.rendezvous.store import offer
from sirtaki.torch.process_group.pmi_server import PmiServer


def is_started() -> bool:
    """Whether the engine runs, or a starter has started this rank."""
    return runtime.is_initialized() or starters.announced_rank() is not None


def stores(timeout: timedelta) -> Iterator[Any]:
    """A rendezvous for torch: (store, rank, number of ranks), once."""
    start_engine(timeout)
    rank, size = core.rank(), core.size()
    host = "127.0.0.1" if core.local_size() == size else socket.gethostname()
    store = None
    if rank == 0:
        store = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    host, port = broadcast_object((host, store.port) if store else None, 0, "torch.store")
    if store is None:
        store = dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("torch asks for a second rendezvous, which env:// does not have")


def start_engine(timeout: timedelta, store: Any = None, rank: int = 0, size: int = 1) -> None:
    """Starts the engine unless it runs. Then `timeout` becomes the limit for late ranks, if no setting gives one.

    store: of the ranks, for processes that no starter of MPI has started.
    """
    if runtime.is_initialized():
        return
    seconds = timeout.total_seconds()
    for name, value in (("STALL_SHUTDOWN_TIME_SECONDS", seconds), ("STALL_CHECK_TIME_SECONDS", min(60.0, seconds / 2))):
        if not any(f"{prefix}_{name}" in os.environ for prefix in ("SIRTAKI", "HOROVOD")):
            os.environ[f"SIRTAKI_{name}"] = f"{value:g}"
    if size > 1 and starters.announced_rank() is None:
        if runtime.uses_sockets():
            offer(store, rank, size)
            runtime.init()
            return
        server = PmiServer(store, rank, size)
        runtime.init()
        server.started()
    else:
        runtime.init()
