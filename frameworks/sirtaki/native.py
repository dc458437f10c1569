"""The compiled core. If it does not load, an object that raises the loader's message at the first use."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any


class AbsentCore:
    """Stands in for the compiled module: any use raises ImportError with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(self.reason)


def _found_files() -> list[Path]:
    folder = Path(__file__).parent
    return sorted(path for path in folder.glob("_core.*") if path.suffix in (".so", ".pyd", ".dylib"))


def _reason(error: ImportError) -> str:
    here = f"Python {sys.version.split()[0]} ({sysconfig.get_config_var('EXT_SUFFIX')})"
    files = _found_files()
    if not files:
        return (
            f"Sirtaki's compiled core is not installed: no _core{importlib.machinery.EXTENSION_SUFFIXES[0]} in "
            f"{Path(__file__).parent} (the loader says: {error}). Install the package with pip, which builds it."
        )
    tried = ", ".join(str(path) for path in files)
    return (
        f"Sirtaki's compiled core does not load: {error}. Tried: {tried}; this is {here}. "
        "A file made for another Python or platform needs a new installation."
    )


def _load() -> Any:
    try:
        return importlib.import_module("sirtaki._core")
    except ImportError as error:
        return AbsentCore(_reason(error))


if TYPE_CHECKING:
    from sirtaki import _core as core
else:
    core = _load()


def absent_parts() -> dict[str, str]:
    """{part: reason} for the compiled core and the MPI library, as far as they do not load."""
    if isinstance(core, AbsentCore):
        return {"core": core.reason}
    from sirtaki.libraries import mpi_library

    try:
        core.mpi_info(mpi_library.candidates())
    except (core.InternalError, ValueError, mpi_library.MpiNotFoundError) as error:
        return {"MPI": str(error)}
    return {}
