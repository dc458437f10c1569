"""How the processes of torch.distributed find each other where a starter of Sirtaki's has started them.

torch's "env://" wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Under sirtakirun, mpiexec and srun they need
not be set: the engine knows the ranks, and sends all of them the address of the store.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from sirtaki import runtime, starters
from sirtaki.exchange import broadcast_object
from sirtaki.native import core

_SCHEME = "env"
_ANNOUNCED = ("RANK", "WORLD_SIZE")  # by torchrun and its like


def install() -> None:
    """From now on env:// works without variables, too, for any backend."""
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers[_SCHEME] = _Handler(handlers[_SCHEME])


class _Handler:
    def __init__(self, own: Callable[..., Iterator[Any]]) -> None:
        self._own = own

    def __call__(self, url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
        if "?" in url or any(name in os.environ for name in _ANNOUNCED) or not _is_started():
            return self._own(url, timeout=timeout, **options)
        return _stores(timeout)


def _is_started() -> bool:
    return runtime.is_initialized() or starters.announced_rank() is not None


def _stores(timeout: timedelta) -> Iterator[Any]:
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


def start_engine(timeout: timedelta) -> None:
    """Starts the engine unless it runs. Then `timeout` becomes the limit for late ranks, if no setting gives one."""
    if runtime.is_initialized():
        return
    seconds = timeout.total_seconds()
    for name, value in (("STALL_SHUTDOWN_TIME_SECONDS", seconds), ("STALL_CHECK_TIME_SECONDS", min(60.0, seconds / 2))):
        if not any(f"{prefix}_{name}" in os.environ for prefix in ("SIRTAKI", "HOROVOD")):
            os.environ[f"SIRTAKI_{name}"] = f"{value:g}"
    runtime.init()
