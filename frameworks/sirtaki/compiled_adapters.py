"""What a compiled adapter of somebody else needs: the header's folder, and the address of the table of functions."""

from __future__ import annotations

from pathlib import Path

from sirtaki.native import core


def get_include() -> str:
    """The folder to give to a compiler by -I; the header in it is <sirtaki/c_api.h>.

    >>> import os
    >>> os.path.isfile(os.path.join(hvd.get_include(), "sirtaki", "c_api.h"))
    True
    """
    return str(Path(__file__).parent / "include")


def c_api() -> int:
    """The address of the table `struct SirtakiApi` of the header, valid until the process ends.

    ImportError with the loader's message if the compiled core is missing. examples/c_adapter shows a use.

    >>> hvd.c_api() > 0
    True
    """
    return core.c_api()
