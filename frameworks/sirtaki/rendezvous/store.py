"""The rendezvous in a store of torch's: that of torchrun, or that of torch.distributed.init_process_group()."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import Any

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.rendezvous.table import SECRET_BYTES, Table, derive, listen

_DISCARD_PORT = 9  # no data is sent: connecting a UDP socket only makes the kernel choose the route

_offered: tuple[Any, int, int] | None = None
_lives = 0  # init() after shutdown() is a new job, in the same store


def offer(store: Any, rank: int, size: int) -> None:
    """The next init() takes this store."""
    global _offered
    _offered = store, rank, size


def take_offered() -> tuple[Any, int, int] | None:
    global _offered
    offered, _offered = _offered, None
    return offered


def of_torchrun(master: tuple[str, int]) -> Any:
    """A client of the store that torchrun itself has at MASTER_ADDR and MASTER_PORT."""
    from torch.distributed import PrefixStore, TCPStore

    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"sirtaki {life}", TCPStore(master[0], master[1], is_master=False))


def join(store: Any, rank: int, size: int, host: str, secret: bytes, limit: float) -> Table:
    """As master.join(). host: of rank 0, for the address by which this host reaches the others."""
    global _lives
    _lives += 1
    own = listen(_address_toward(host))
    store.set(_key(rank), json.dumps(own.getsockname()[:2]))
    if rank == 0:
        store.set(_key("nonce"), os.urandom(SECRET_BYTES).hex())
    keys = [_key(each) for each in range(size)]
    try:
        store.wait([*keys, _key("nonce")], timedelta(seconds=limit))
    except RuntimeError as error:  # torch's DistStoreError is one
        missing = [each for each in range(size) if not store.check([keys[each]])]
        raise SirtakiInternalError(
            f"{size - len(missing)} of {size} ranks arrived within {limit:g} s (SIRTAKI_START_TIMEOUT), missing: "
            f"{', '.join(f'rank {each}' for each in missing) or f'none, but {error}'}"
        ) from None
    addresses = [(str(name), int(port)) for name, port in (json.loads(store.get(key)) for key in keys)]
    return Table(rank, addresses, derive(secret, b"job", bytes.fromhex(store.get(_key("nonce")).decode())), own)


def _key(name: int | str) -> str:
    return f"sirtaki/{_lives}/{name}"


def _address_toward(host: str) -> str:
    family, _, _, _, address = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
