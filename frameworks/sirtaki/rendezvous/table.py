"""The table of a job's ranks, and the socket with which a rank stands in it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
from dataclasses import dataclass

from sirtaki import settings
from sirtaki.host import interfaces

SECRET_BYTES = 32


@dataclass
class Table:
    """addresses: by rank. key: the secret of this one job. listener: of this rank; None for a job of one rank.
    generation: counts the tables of a job whose ranks change.
    """

    rank: int
    addresses: list[tuple[str, int]]
    key: bytes
    listener: socket.socket | None
    generation: int = 1


def alone() -> Table:
    """The table of a job of one rank."""
    return Table(0, [("127.0.0.1", 0)], os.urandom(SECRET_BYTES), None)


def listen(default: str) -> socket.socket:
    """A socket on which other ranks reach this one: at the address or interface of SIRTAKI_SOCKET_INTERFACE, else at
    the address `default`. ValueError if this host has no such interface, OSError if no socket can be made.
    """
    variable, wish = settings.look_up("SOCKET_INTERFACE")
    address = _address_of(variable, wish) if wish else default
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    listener.setblocking(False)  # the core accepts the connections that wait, and never blocks
    return listener


def _address_of(variable: str, wish: str) -> str:
    try:
        return str(ipaddress.ip_address(wish))
    except ValueError:
        pass
    present = interfaces.addresses()
    if not present.get(wish):
        raise ValueError(
            f"{variable}={wish!r}: neither an address nor an interface of this host, which has "
            f"{', '.join(sorted(present))}"
        )
    return next((address for address in present[wish] if ":" not in address), present[wish][0])


def derive(secret: bytes, purpose: bytes, *nonces: bytes) -> bytes:
    """A key for one purpose, from which the secret cannot be found."""
    return hmac.new(secret, purpose + b"".join(hashlib.sha256(nonce).digest() for nonce in nonces), "sha256").digest()
