"""The files of a folder of checkpoints: written whole or not at all, and read only if they are whole.

A name has a number, which grows, and the digest of the content: checkpoint-00000012-2c26b46b68ffc68f.pt. So the content
is in the plain format of its library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Iterator

_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})(\.\w+)")
_UNFINISHED = ".checkpoint-"  # begin of the name of a file that is being written

Content = bytes | memoryview


def write(folder: str, content: Content, suffix: str, keep: int) -> None:
    """Writes the next file, then removes all but the newest `keep`. OSError names the file; nothing is removed then.

    One process at a time may write into a folder. Files that a killed one has left unfinished are removed.
    """
    older = list(_listed(folder, suffix))
    number = older[0][0] + 1 if older else 1
    path = os.path.join(folder, f"checkpoint-{number:08d}-{_digest(content)}{suffix}")
    unfinished = os.path.join(folder, f"{_UNFINISHED}{number}-{os.getpid()}")
    try:
        _make(folder)
        for name in os.listdir(folder):
            if name.startswith(_UNFINISHED):
                _remove(folder, name)
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        _sync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise OSError(error.errno, f"the checkpoint was not written: {error.strerror}", path) from error
    for _, name in older[keep - 1 :]:
        _remove(folder, name)


def newest(folder: str, suffix: str) -> bytes | None:
    """The content of the newest file that is whole; None if the folder has no checkpoint. Warns of each damaged file.

    OSError if there are files, but all are damaged.
    """
    damaged = []
    for _, name in _listed(folder, suffix):
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                content = file.read()
            if _digest(content) in name:
                return content
            why = "its content does not fit the digest in its name"
        except OSError as error:
            why = error.strerror or str(error)
        damaged.append(name)
        warnings.warn(f"{path} is damaged, so the checkpoint before it is taken: {why}", RuntimeWarning, stacklevel=4)
    if damaged:
        raise OSError(f"no checkpoint in {folder} is whole: {', '.join(damaged)}; remove them to begin without one")
    return None


def _listed(folder: str, suffix: str) -> Iterator[tuple[int, str]]:
    """(number, name) of each file, the newest first."""
    with contextlib.suppress(FileNotFoundError):
        found = (_NAME.fullmatch(name) for name in os.listdir(folder))
        yield from sorted(((int(one[1]), one[0]) for one in found if one and one[3] == suffix), reverse=True)


def _digest(content: Content) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _make(folder: str) -> None:
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        _sync_folder(os.path.dirname(os.path.abspath(folder)))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, name))
