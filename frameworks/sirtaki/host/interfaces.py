"""The network interfaces of this host."""

from __future__ import annotations

import socket


def addresses() -> dict[str, list[str]]:
    """The addresses of each interface. IPv6 addresses that need a zone are left out: other hosts cannot use them."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [a.address for a in found if a.family in families and "%" not in a.address]
        for name, found in psutil.net_if_addrs().items()
    }
