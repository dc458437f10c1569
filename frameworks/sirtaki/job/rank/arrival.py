"""Start of a job: which ranks of this host have called init(), and that each rank is a single process.

MPI's own init waits for all processes of the job, without a limit or a message, and two processes of one rank confuse
it. So every rank binds a name in the abstract namespace of Unix sockets, which leaves no file. A rank that has waited
too long checks which names exist. For ranks of other hosts, and under `sirtakirun`, other code detects this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
import threading

from sirtaki import starters
from sirtaki.host import processes, segments
from sirtaki.libraries import mpi_library

_TABLE = "/proc/net/unix"
_FAILED = 1
_own: socket.socket | None = None


def claim() -> None:
    """Claims the rank for this process. RuntimeError with the other process's id if one has claimed it already."""
    global _own
    leave()
    rank, size = starters.announced_rank(), starters.announced_size()[1]
    if rank is None or size < 2:
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind("\0" + _name(rank))
        listener.listen()
    except OSError as error:
        listener.close()
        process, user = _holder(rank) if error.errno == errno.EADDRINUSE else (0, -1)
        if user == os.geteuid():
            raise RuntimeError(
                f"rank {rank} of {size} has joined already, as process {process} on this host; this is process "
                f"{os.getpid()}. Only one process of each rank may call init()."
            ) from None
        return  # no such sockets here, or another user has taken the name: no check is possible
    _own = listener


def leave() -> None:
    """Releases the rank, for another process or for a later init()."""
    global _own
    own, _own = _own, None
    if own is not None:
        own.close()


os.register_at_fork(after_in_child=leave)


class Watch:
    """While MPI's init runs: ends this process with a message when init takes longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._on_time)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _on_time(self) -> None:
        if _mpi_is_up():
            return  # the ranks are connected, and report late ranks themselves
        with contextlib.suppress(Exception):
            sys.stderr.write(f"[rank {starters.announced_rank() or 0}] {who_is_missing(self._seconds)}\n")
            sys.stderr.flush()
            segments.remove_names(segments.held_by([os.getpid()]))  # MPI's init cannot end on any rank
        os._exit(_FAILED)


def who_is_missing(seconds: float) -> str:
    """A message with the ranks that have not called init() in time, as far as this host knows."""
    size = starters.announced_size()[1]
    if size < 2:
        return (
            f"MPI did not start within {seconds:g} s (SIRTAKI_START_TIMEOUT); the launcher has announced no other ranks"
        )
    names = _names()
    here = [rank for rank in range(size) if _name(rank) in names]
    missing = [rank for rank in range(size) if rank not in here]
    if len(missing) == size:  # names are not visible
        return f"not all of {size} ranks arrived within {seconds:g} s (SIRTAKI_START_TIMEOUT)"
    text = f"{len(here)} of {size} ranks arrived within {seconds:g} s (SIRTAKI_START_TIMEOUT)"
    if starters.announced_local_size() not in (0, size):
        return f"{text} on host {socket.gethostname()}, which cannot see other hosts; missing: {_list(missing)}"
    return f"{text}, missing: {_list(missing)}" if missing else f"{text}, but MPI did not start{_stopped(here)}"


def _stopped(ranks: list[int]) -> str:
    for rank in ranks:
        process, user = _holder(rank)
        if user >= 0 and processes.is_stopped(process):
            return f": rank {rank}, process {process}, {processes.state(process)}"
    return ""


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:20])) + (", ..." if len(ranks) > 20 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _name(rank: int) -> str:
    return f"sirtaki-rank-{os.geteuid()}-{_job()}-{rank}"


def _names() -> set[str]:
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            return {line.split()[-1][1:] for line in file if "@sirtaki-rank-" in line}
    except OSError:
        return set()


def _holder(rank: int) -> tuple[int, int]:
    """(process, user); (0, -1) if no process has bound the name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect("\0" + _name(rank))
        except OSError:
            return 0, -1
        process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return process, user


def _job() -> str:
    """Names the job, the same for all its ranks on this host: the starter's name for it, else the nearest ancestor that
    is no rank. Under Hydra both denote the same process.
    """
    if name := starters.job():
        return name
    process = os.getppid()
    while process > 1 and _is_rank(process):
        process = processes.parent(process)
    return f"{process}-{processes.start_time(process)}"


def _is_rank(process: int) -> bool:
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            entries = (entry.decode(errors="replace").partition("=") for entry in file.read().split(b"\0"))
            environ = {name: value for name, _, value in entries}
    except OSError:
        return False  # another user's process: not part of the job
    return starters.announced_rank(environ) is not None


def _mpi_is_up() -> bool:
    flag = ctypes.c_int(0)
    try:
        ctypes.CDLL(mpi_library.candidates()[0]).MPI_Initialized(ctypes.byref(flag))
    except (OSError, AttributeError, IndexError):
        return True
    return flag.value != 0
