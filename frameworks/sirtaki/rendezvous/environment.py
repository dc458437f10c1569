"""The rank of this process and the way to the others, from the launcher, or from the variables that torchrun and
schedulers set.
"""

from __future__ import annotations

import os
import socket

from sirtaki import settings, starters
from sirtaki.rendezvous import launcher, master, shared_file, store, table

_RANK = ("RANK", "JOB_COMPLETION_INDEX")  # the second is that of Kubernetes' indexed jobs
_SIZE = "WORLD_SIZE"
_ADDRESS = "MASTER_ADDR"
_PORT = "MASTER_PORT"
_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"  # then the port is that of torchrun's store


def join(limit: float) -> table.Table:
    """Returns when all ranks of the job have called it. ValueError for a variable that is missing or wrong, and
    SirtakiInternalError as master.join().
    """
    secret = settings.look_up("SECRET")[1].encode()
    if offered := store.take_offered():
        return store.join(*offered, os.environ.get(_ADDRESS) or socket.gethostname(), secret, limit)
    if launcher.is_there():
        return launcher.join()
    if not any(name in os.environ for name in (*_RANK, _SIZE)):
        variable, size = starters.announced_size()
        if size > 1:
            raise ValueError(
                f"the launcher announced {size} processes ({variable}={size}), but without MPI a rank finds the others "
                f"by {_RANK[0]}, {_SIZE}, {_ADDRESS} and {_PORT}, which are not set"
            )
        return table.alone()
    size = _number(_SIZE, least=1)
    rank = _number(next((name for name in _RANK if name in os.environ), _RANK[0]))
    if rank >= size:
        raise ValueError(f"RANK={rank}: {_SIZE}={size} has ranks 0 to {size - 1}")
    if size == 1:
        return table.alone()
    if path := settings.look_up("RENDEZVOUS_FILE")[1]:
        return shared_file.join(rank, size, path, secret, limit)
    address = os.environ.get(_ADDRESS, "")
    if not address:
        raise ValueError(
            f"{_ADDRESS} is not set: the address of the host of rank 0, as the other hosts know it; or set "
            f"{shared_file.VARIABLE} to a file that all hosts see"
        )
    meeting = address, _number(_PORT, least=1)
    if os.environ.get(_TORCHRUN) == "True":
        return store.join(store.of_torchrun(meeting), rank, size, address, secret, limit)
    return master.join(rank, size, meeting, secret, limit)


def _number(name: str, least: int = 0) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least {least}")
    return int(value)
