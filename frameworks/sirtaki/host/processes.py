"""Finds and ends the processes below one of ours (Linux), with the standard library alone.

A subreaper becomes the parent of orphans among its descendants. So all processes that a program has started stay below
it in the tree, in any session or process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int, parent: int) -> None:
    """Called in a new child: the kernel sends it this signal when `parent` ends, or has ended before the call."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def descendants(root: int) -> list[int]:
    """The living processes below `root`, children before grandchildren; zombies do not count."""
    children: dict[int, list[int]] = {}
    dead = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # has ended meanwhile
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            dead.add(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return [pid for pid in found if pid not in dead]


def parent(process: int) -> int:
    """The id of its parent; 0 if the process has ended."""
    fields = _stat(process)
    return int(fields[1]) if fields else 0


def ancestors() -> list[int]:
    """The ancestors of this process, the parent first."""
    found = []
    process = os.getppid()
    while process > 0:
        found.append(process)
        process = parent(process)
    return found


def start_time(process: int) -> str:
    """In kernel ticks; distinguishes the process from an earlier one with the same id. "" if it has ended."""
    fields = _stat(process)
    return fields[19] if fields else ""


def _stat(process: int) -> list[str]:
    """The fields of /proc after the name: state, parent, ...; empty if the process has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


_STATES = {
    "R": "is running",
    "S": "is sleeping",
    "D": "waits in the kernel, for a file system or a device",
    "T": "is stopped",
    "t": "is stopped by a debugger",
}


def is_stopped(process: int) -> bool:
    return state(process) in (_STATES["T"], _STATES["t"])


def state(process: int) -> str:
    """The state of the process in words."""
    return _STATES.get("".join(_stat(process)[:1]), "is gone")


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants(root: int, reap: Callable[[], object], seconds: float = 3.0) -> list[int]:
    """Kills until no process lives below `root`, including new ones. Returns the processes left after `seconds`."""
    deadline = time.monotonic() + seconds
    while alive := descendants(root):
        if time.monotonic() > deadline:
            return alive
        send(alive, signal.SIGKILL)
        reap()
        time.sleep(0.01)
    reap()
    return []


def reap_orphans() -> None:
    """Takes the exit codes of all ended children. For callers that need no exit code."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
