"""Chooses this host's addresses for connections from other hosts: those by which this host reaches them."""

from __future__ import annotations

import functools
import ipaddress
import socket
import subprocess
from collections.abc import Collection, Sequence

from sirtaki.host import interfaces

_ELSEWHERE = "203.0.113.1"  # reserved for documentation, so the default route leads there
_DISCARD_PORT = 9  # no data is sent: connecting a UDP socket only makes the kernel choose the route


def own_name() -> str:
    """This host's name for mpiexec, by which mpiexec recognises its own host."""
    return socket.gethostname()


@functools.cache
def own_names() -> frozenset[str]:
    """The names that the user may give for this host."""
    name = socket.gethostname()
    return frozenset({"localhost", name, name.partition(".")[0], socket.getfqdn()})


def is_own(name: str) -> bool:
    """Whether this name or address is this host, so that no ssh is needed."""
    if name in own_names():
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or str(address) in {a for found in interfaces.addresses().values() for a in found}


def refuse_loopback(name: str, among: Collection[str]) -> None:
    """ValueError if the name means the local host on every host."""
    if not _is_loopback(name):
        return
    try:
        better = next((address for other in among if not is_own(other) and (address := _by_route(other))), own_name())
    except ValueError:
        better = own_name()
    raise ValueError(
        f"host {name} is the local host on every host; give its name as other hosts know it, for example {better}"
    )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.partition(".")[0] in ("localhost", "ip6-localhost", "localhost6")


def toward(names: Collection[str], nics: Sequence[str] = ()) -> list[str]:
    """This host's addresses for connections from those hosts; of these network interfaces, if any are given.

    names: empty if unknown. ValueError for an unknown interface, and for a name that resolves to this host.
    """
    if nics:
        return _of_interfaces(nics)
    others = [name for name in names if not is_own(name)]
    if names and not others:
        return ["127.0.0.1"]
    found = dict.fromkeys(address for name in others if (address := _by_route(name)))
    return list(found) or _outside()


def ipv4_beside(address: str) -> str | None:
    """An IPv4 address of the interface that has this address: MPICH's mpiexec supports IPv4 only."""
    if ":" not in address:
        return address
    for addresses in interfaces.addresses().values():
        if address in addresses:
            return next((other for other in addresses if ":" not in other), None)
    return None


def _by_route(name: str) -> str | None:
    """None for a name that only ssh can resolve."""
    target = _resolved(name) or _resolved(_known_to_ssh(name))
    if not target:
        return None
    family, address = target
    if ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        raise ValueError(
            f"host {name} is {address[0]} here, a loopback address, which no other host can reach: correct its line in "
            f"/etc/hosts (or DNS), or give the host's address in place of its name"
        )
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address[0], _DISCARD_PORT, *address[2:]))
        except OSError as error:
            raise ValueError(f"host {name} ({address[0]}): there is no route to it: {error.strerror}") from None
        return str(probe.getsockname()[0])


def _resolved(name: str) -> tuple[int, tuple[str, int]] | None:
    try:
        found = socket.getaddrinfo(name.rpartition("@")[2], None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    return next(((family, address) for family, _, _, _, address in found), None)  # type: ignore[return-value]


def _known_to_ssh(name: str) -> str:
    """The host name behind an alias in the user's ssh configuration."""
    try:
        done = subprocess.run(["ssh", "-G", name], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return name
    words = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    return words.get("hostname", name)


def _of_interfaces(nics: Sequence[str]) -> list[str]:
    present = interfaces.addresses()
    for name in nics:
        if name not in present:
            raise ValueError(f"--network-interfaces {name}: not on this host, which has {', '.join(sorted(present))}")
    found = [address for name in nics for address in present[name]]
    return [address for address in found if ":" not in address] or found


def _outside() -> list[str]:
    """The address toward other networks comes first: it is more likely to be reached than that of a bridge."""
    every = [address for addresses in interfaces.addresses().values() for address in addresses]
    outside = [address for address in every if not ipaddress.ip_address(address).is_loopback]
    outside.sort(key=lambda address: address != _by_default_route())
    return [address for address in outside if ":" not in address] or outside or ["127.0.0.1"]


def _by_default_route() -> str:
    """ "" if there is no such route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE, _DISCARD_PORT))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
