"""The line of the user's program that asked for a collective, as error messages show it: "train.py:41"."""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType

# Files below these folders are not the user's program. Each adapter adds its framework's folder.
_internal: tuple[str, ...] = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<eval_with_key>",
    "<frozen ",
)
_standard_library = os.path.dirname(os.__file__) + os.sep


def add_internal_folder(path: str) -> None:
    """From now on call_site() skips frames of files below this folder."""
    add_internal_prefix(os.path.join(os.path.abspath(path), ""))


def add_internal_prefix(path: str) -> None:
    """From now on call_site() skips frames of files whose path begins with this prefix."""
    global _internal
    if path not in _internal:
        _internal = (*_internal, path)


def is_internal(file: str) -> bool:
    """Whether this file belongs to Sirtaki or to a framework."""
    return file.startswith(_internal)


def call_site() -> str:
    """File name and line of the innermost frame outside this package and the frameworks; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_internal):
            return f"{_base_name(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def site_in(trace: TracebackType | None) -> str:
    """The same for an exception: the innermost frame of its traceback in the user's program, or "".

    Frames of Python's own library are skipped: if open() fails, the line that called it is shown.
    """
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_internal) and not _is_standard(file):
            found = f"{_base_name(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _base_name(file: str) -> str:
    name = os.path.basename(file)
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()  # may not be UTF-8


def _is_standard(file: str) -> bool:
    """Whether the file belongs to Python itself. Installed packages do not, although they may lie below its folder."""
    return file.startswith(_standard_library) and f"-packages{os.sep}" not in file
