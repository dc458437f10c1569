"""The cores for the ranks of this host: how many a container's quota allows, and which belong to each rank."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

_CGROUPS = "/sys/fs/cgroup"
# With these, OpenMP libraries bind threads in each process separately: all processes to the same cores.
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
_UNBOUND = ("", "false", "none", "disabled")


def available() -> int:
    """Cores that this process may use, at least 1: the smaller of its affinity and its container's CPU quota."""
    limit = quota()
    return max(1, math.floor(limit)) if limit < allowed() else allowed()


def allowed() -> int:
    """Number of cores in this process's affinity."""
    return len(os.sched_getaffinity(0))


def quota(root: str = _CGROUPS, membership: str = "/proc/self/cgroup") -> float:
    """Cores that the control groups of this process allow at a time; infinite without a quota."""
    return min(_quotas(root, membership), default=math.inf)


def _quotas(root: str, membership: str) -> Iterator[float]:
    try:
        with open(membership, encoding="utf-8", errors="surrogateescape") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":  # version 2: outer groups may have a quota, too
            for folder in _and_above(path):
                yield _quota_of(*_words(f"{root}{folder}/cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in (f"{root}/{controllers}{path}", f"{root}/cpu{path}", f"{root}/cpu"):
                yield _quota_of(*_words(f"{folder}/cpu.cfs_quota_us"), *_words(f"{folder}/cpu.cfs_period_us"))


def _and_above(path: str) -> Iterator[str]:
    folder = path.rstrip("/")
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


def _quota_of(*words: str) -> float:
    """Cores from a quota and a period in microseconds; "max" and -1 mean no quota."""
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return math.inf
    return int(words[0]) / int(words[1])


def binding_variable(environ: Mapping[str, str]) -> str:
    """The variable that makes an OpenMP library bind a rank's threads to cores; "" if there is none."""
    if environ.get("OMP_PROC_BIND", "").lower() == "false":
        return ""
    return next((name for name in _BINDING if environ.get(name, "").lower() not in _UNBOUND), "")


def listing_variable(environ: Mapping[str, str]) -> str:
    """The variable that lists the cores by number, the same for all ranks of a host; "" if there is none."""
    names = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "KMP_AFFINITY")
    return next((n for n in names if n in environ and _lists_cores(n, environ[n].lower())), "")


def _lists_cores(name: str, value: str) -> bool:
    return {"GOMP_CPU_AFFINITY": bool(value), "OMP_PLACES": "{" in value}.get(name, "proclist" in value)


def can_bind(environ: Mapping[str, str]) -> bool:
    """Whether OpenMP should bind threads, and will bind them to the cores of their own rank."""
    return bool(binding_variable(environ)) and not listing_variable(environ)


def share(local_rank: int, ranks: int) -> set[int]:
    """The cores of one of `ranks` ranks on this host. No two ranks share a core. Empty if there are too few cores.

    Neighbours in the order of sockets and cores stay together, as do the hardware threads of one core.
    """
    cores = sorted(os.sched_getaffinity(0), key=_place)
    if not 0 <= local_rank < ranks <= len(cores):
        return set()
    return set(cores[len(cores) * local_rank // ranks : len(cores) * (local_rank + 1) // ranks])


def _place(core: int) -> tuple[int, ...]:
    folder = f"/sys/devices/system/cpu/cpu{core}/topology"
    words = [_words(f"{folder}/{name}") for name in ("physical_package_id", "core_id")]
    return (*(int(word[0]) if word and word[0].isdigit() else 0 for word in words), core)
