"""The job's directory, which only this user can enter. It holds the job's spec and the socket for its workers."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from sirtaki.job.protocol import spec

_SOCKET_PATH_LIMIT = 100  # bytes; the kernel allows 107


@contextmanager
def make() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="sirtaki-")  # mode 0700
    if len(os.fsencode(path)) + len("/socket") > _SOCKET_PATH_LIMIT or any(letter.isspace() for letter in path):
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix="sirtaki-", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leave(directory: str, name: str, content: bytes) -> str:
    """Writes a new file that only this user can read; returns its path."""
    path = os.path.join(directory, name)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as stream:
        stream.write(content)
    return path


def listen(job_spec: spec.Spec, directory: str) -> socket.socket:
    """Writes the spec into the directory. Returns the socket for workers of this host."""
    job_spec.directory = directory
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(job_spec.socket_path())
    listener.listen(socket.SOMAXCONN)
    leave(directory, "spec", job_spec.to_bytes())
    return listener
