"""Hosts and their slots, as the user gives them: -H h1:n,h2:n, or a host file in a common dialect."""

import re
from collections.abc import Iterable

from sirtaki.starters.request import Host

_NAME = r"\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?:[\w.-]+@)?[\w.-]+"
_HOST = re.compile(rf"(?P<name>{_NAME}):(?P<slots>[0-9]+)")
# Open MPI "h slots=2 max_slots=4"; MPICH "h:2 binding=..."; PBS, SGE and Slurm: one slot for each line.
_LINE = re.compile(rf"(?P<name>{_NAME})(?::(?P<slots>[0-9]+))?(?P<words>(?:\s+\S.*)?)")
_WORD = re.compile(r"(?P<key>[\w-]+)\s*=\s*(?P<value>\S+)\s*")
_IGNORED = ("max_slots", "max-slots", "binding", "ifhn", "user", "username")
_FORMS = "'host slots=n', 'host:n', or 'host' once for each slot"
_MOST_SLOTS = 1 << 20


def from_list(text: str) -> list[Host]:
    """Parses "h1:2,h2:1,[fd00::1]:2". ValueError with the wrong part."""
    found = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        if not match:
            raise ValueError(f"-H {text!r}: {part!r} is not of the form host:slots, for example h1:2,h2:1,[fd00::1]:2")
        found.append(_host(match, int(match["slots"]), f"-H {text!r}: {part!r}"))
    return _merged(found)


def from_file(path: str) -> list[Host]:
    """Reads a file with one host on each line; # starts a comment. ValueError with file and line, or OSError."""
    with open(path, "rb") as file:
        return from_text(file.read(), path)


def from_text(content: bytes, path: str, slots: int = 1) -> list[Host]:
    """Parses the content of a host file. A repeated host gets more slots. ValueError with the line.

    slots: of a host in a line without a number.
    """
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        where = f"{path}:{number}"
        try:
            text = line.decode().partition("#")[0].strip()
        except UnicodeDecodeError:
            raise ValueError(f"{where}: {line[:80]!r} is not UTF-8 text; a line has the form {_FORMS}") from None
        if text:
            found.append(_from_line(text, where, slots))
    if not found:
        raise ValueError(f"{path}: no host; a line has the form {_FORMS}")
    return _merged(found)


def _from_line(text: str, where: str, slots: int) -> Host:
    match = _LINE.fullmatch(text)
    if not match:
        raise ValueError(f"{where}: {text!r} is not of the form {_FORMS}")
    counts = [int(match["slots"])] if match["slots"] else []
    rest = match["words"].strip()
    while rest:
        word = _WORD.match(rest)
        if not word:
            raise ValueError(f"{where}: {text!r} is not of the form {_FORMS}")
        rest = rest[word.end() :]
        if word["key"] in ("slots", "cpu", "np"):
            if not re.fullmatch("[0-9]+", word["value"]):
                raise ValueError(f"{where}: {word['key']}={word['value']} is not a number of slots")
            counts.append(int(word["value"]))
        elif word["key"] not in _IGNORED:
            raise ValueError(f"{where}: {word['key']}= is not understood; a line has the form {_FORMS}")
    if len(counts) > 1:
        raise ValueError(f"{where}: {text!r} gives the number of slots twice")
    return _host(match, counts[0] if counts else slots, f"{where}: {text!r}")


def check_slots(hosts: Iterable[Host], ranks: int) -> None:
    """ValueError with both numbers if the hosts have fewer slots than `ranks`."""
    hosts = list(hosts)
    offered = sum(host.slots for host in hosts)
    if ranks > offered:
        listed = " + ".join(map(str, hosts))
        total = f"{listed} = {offered}" if len(hosts) > 1 else listed
        raise ValueError(
            f"{ranks} ranks, but the hosts offer {total} slot{'s' if offered != 1 else ''}; "
            f"ask for -np {offered} or give the hosts more slots"
        )


def filled(hosts: Iterable[Host], ranks: int) -> list[Host]:
    """The hosts that get ranks, in their order, each with its number of ranks."""
    result = []
    for host in hosts:
        if ranks > 0:
            result.append(Host(host.name, min(host.slots, ranks)))
            ranks -= host.slots
    return result


def _host(match: "re.Match[str]", slots: int, where: str) -> Host:
    if not 1 <= slots <= _MOST_SLOTS:
        raise ValueError(f"{where}: a host needs at least 1 slot and has at most {_MOST_SLOTS}")
    name = match["v6"] or match["name"]
    if name.startswith("-"):  # ssh would take it for an option
        raise ValueError(f"{where}: a host's name does not begin with '-'")
    return Host(name, slots)


def _merged(hosts: list[Host]) -> list[Host]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
