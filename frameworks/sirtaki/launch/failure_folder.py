"""The folder in which the ranks of a failed job leave their last records: the user's, or a temporary one."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping

_VARIABLES = (b"SIRTAKI_FAILURE_RECORDS", b"HOROVOD_FAILURE_RECORDS")
_PREFIX = "sirtaki-records-"
_KEPT = 5  # folders of this user; older ones are removed


@contextlib.contextmanager
def provide(environ: MutableMapping[bytes, bytes], will_run: bool = True) -> Iterator[None]:
    """A context of one job, whose ranks get a new folder in `environ`, unless the user has set the variable.

    Ranks of other hosts make a folder of the same name there. A folder that stays empty is removed.
    """
    if not will_run or any(environ.get(name, b"").strip() for name in _VARIABLES):
        yield
        return
    _remove_older()
    try:
        path = tempfile.mkdtemp(prefix=_PREFIX)  # mode 0700
    except OSError:  # a full or read-only disk is no reason to refuse the job
        yield
        return
    environ[_VARIABLES[0]] = os.fsencode(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)


def of_life(environ: Mapping[bytes, bytes], number: int) -> str:
    """The folder of the job's start of this number, as the ranks name it (settings.file_of_this_start); "" for none."""
    path = os.fsdecode(next((environ[name] for name in _VARIABLES if environ.get(name)), b"")).strip()
    base, suffix = os.path.splitext(path)
    return f"{base}.restart{number}{suffix}" if path and number else path


def _remove_older() -> None:
    """With the new one, as many stay as are to be kept."""
    own = []
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if status.st_uid == os.geteuid():
                own.append((status.st_mtime, path))
    for _, path in sorted(own)[: 1 - _KEPT]:
        shutil.rmtree(path, ignore_errors=True)
