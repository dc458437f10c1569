"""Where the user's program asked for a collective, as error messages show it: "train.py:41"."""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType

# Frames of these folders are not the user's; adapters add their framework's.
_internal: tuple[str, ...] = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<eval_with_key>",
    "<frozen ",
)
_standard_library = os.path.dirname(os.__file__) + os.sep


def add_internal_folder(path: str) -> None:
    """Frames of files below this folder are passed over from now on."""
    add_internal_prefix(os.path.join(os.path.abspath(path), ""))


def add_internal_prefix(path: str) -> None:
    """Frames of files whose path begins so are passed over from now on."""
    global _internal
    if path not in _internal:
        _internal = (*_internal, path)


def is_internal(file: str) -> bool:
    """Whether this is a file of ours or of a framework."""
    return file.startswith(_internal)


def call_site() -> str:
    """File name and line of the innermost frame that belongs to neither this package nor a framework, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_internal):
            return f"{_base_name(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def site_in(trace: TracebackType | None) -> str:
    """The same for an exception: the innermost frame of its traceback that is the user's, or "".

    What Python's library raises, as for a file that is not there, is due to its caller.
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
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()  # it may be no UTF-8


def _is_standard(file: str) -> bool:
    """Whether it belongs to Python itself; packages that are installed may lie below that."""
    return file.startswith(_standard_library) and f"-packages{os.sep}" not in file
