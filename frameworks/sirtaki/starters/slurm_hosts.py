"""The hosts of a Slurm allocation, from Slurm's variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_MOST_HOSTS = 1 << 16
_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|$)")


def hosts(environ: Mapping[str, str]) -> list[str]:
    """Empty if Slurm's variables are missing or cannot be parsed."""
    text = next((environ[name] for name in _LISTS if environ.get(name)), "")
    try:
        return expanded(text)
    except ValueError:
        return []


def expanded(text: str) -> list[str]:
    """ "n[1-3,07],m" is n1, n2, n3, n07, m. ValueError for any other form or for too many names."""
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if not match or not match[0].strip(","):
            raise ValueError(f"{text[:200]!r} is not a list of hosts as Slurm writes it")
        for number in _numbers(match[2]) if match[2] else ("",):
            found.append(f"{match[1]}{number}{match[3]}")
            if len(found) > _MOST_HOSTS:
                raise ValueError(f"{text[:200]!r} has more than {_MOST_HOSTS} hosts")
        at = match.end()
    return found


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"[{text[:200]}] is not a list of numbers")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"
