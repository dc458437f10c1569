"""Hosts and their slots, as the user names them: -H h1:n,h2:n or a file with lines "host slots=n"."""

import re
import socket
from dataclasses import dataclass

_HOST = re.compile(r"([\w.-]+):([0-9]+)")
_LINE = re.compile(r"([\w.-]+)(?:\s+slots\s*=\s*|:)([0-9]+)")


@dataclass(frozen=True)
class Host:
    """name: as ssh knows it. slots: how many ranks may run there, at least 1."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def from_list(text: str) -> list[Host]:
    """From "h1:2,h2:1". Raises ValueError with the part that is wrong."""
    found = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        if not match:
            raise ValueError(f"-H {text!r}: {part!r} is not of the form host:slots, for example h1:2,h2:1")
        found.append(_host(match, f"-H {text!r}: {part!r}"))
    return _merged(found)


def from_file(path: str) -> list[Host]:
    """From a file with "host slots=n" or "host:n" on each line; # starts a comment. Raises ValueError, OSError."""
    found = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            match = _LINE.fullmatch(text)
            if not match:
                raise ValueError(f"{path}:{number}: {text!r} is not of the form 'host slots=n'")
            found.append(_host(match, f"{path}:{number}: {text!r}"))
    if not found:
        raise ValueError(f"{path}: no host in this file; it needs lines of the form 'host slots=n'")
    return _merged(found)


def check_slots(hosts: list[Host], ranks: int) -> None:
    """Raises ValueError with the arithmetic when the hosts have fewer slots than ranks are wanted."""
    offered = sum(host.slots for host in hosts)
    if ranks > offered:
        listed = " + ".join(map(str, hosts))
        total = f"{listed} = {offered}" if len(hosts) > 1 else listed
        raise ValueError(
            f"{ranks} ranks, but the hosts offer {total} slot{'s' if offered != 1 else ''}; "
            f"ask for -np {offered} or give the hosts more slots"
        )


def all_local(hosts: list[Host]) -> bool:
    """Whether every name is this host's own, so that no ssh is needed."""
    own = socket.gethostname()
    names = {"localhost", "127.0.0.1", own, own.partition(".")[0], socket.getfqdn()}
    return all(host.name in names for host in hosts)


def _host(match: re.Match[str], where: str) -> Host:
    slots = int(match.group(2))
    if slots < 1:
        raise ValueError(f"{where}: a host needs at least 1 slot")
    return Host(match.group(1), slots)


def _merged(hosts: list[Host]) -> list[Host]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
