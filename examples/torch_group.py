"""torch.distributed over the ranks that Sirtaki has, for comparisons in one run."""

import socket

import torch
import torch.distributed as dist

import sirtaki.torch as hvd


def start() -> str:
    """Starts it on every rank and returns its backend: NCCL where each rank has a GPU of its own, otherwise gloo."""
    with socket.socket() as free:
        free.bind(("", 0))
        host, port = hvd.broadcast_object((socket.gethostname(), free.getsockname()[1]), root_rank=0)
    if hvd.local_size() == hvd.size():
        host = "127.0.0.1"
    own_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= hvd.local_size() and dist.is_nccl_available()
    backend = "nccl" if all(hvd.allgather_object(own_gpus)) else "gloo"
    store = dist.TCPStore(host, port, hvd.size(), is_master=hvd.rank() == 0)
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    dist.init_process_group(backend, store=store, rank=hvd.rank(), world_size=hvd.size(), device_id=device)
    return backend
