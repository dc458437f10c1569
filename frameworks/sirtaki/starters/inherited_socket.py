"""MPI's socket to its starter, an open descriptor that a rank inherits."""

from __future__ import annotations

import os
import socket
import stat
import struct

from sirtaki.host import processes

_made_here: set[str] = set()  # identities


def peer(descriptor: int) -> int | None:
    """The process at the other end of a starter's socket, 0 if this process cannot see it.

    None if the descriptor is closed or is now another file, which must not be written to.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as line:
            if line.family != socket.AF_UNIX:
                return None
            process = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        return None
    if process == os.getpid():
        return os.getppid() if identity(descriptor) in _made_here else None
    return process if process == 0 or process in processes.ancestors() else None


def made_here(descriptor: int) -> None:
    """This process is at the other end itself, in place of its parent, which has started all ranks of this host."""
    _made_here.add(identity(descriptor))


def identity(descriptor: int) -> str:
    """Distinguishes this socket from all others of this host."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def described(descriptor: int) -> str:
    """What the descriptor is now, for a message."""
    try:
        return f"is {os.readlink(f'/proc/self/fd/{descriptor}')}"
    except OSError:
        return "is closed"
