"""Finds a Horovod that is installed beside this package, in the same folder or in another one."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

_ONLY_HOROVOD_HAS = Path("horovod", "common", "basics.py")  # in this package that module has no file


def refuse() -> None:
    """ImportError if a real Horovod is installed, with the commands that leave one of the two."""
    if found := place():
        raise ImportError(
            f"{found} is installed, and so is sirtaki-horovod ({Path(__file__).parents[2]}), which hides it. "
            "For Sirtaki: pip uninstall horovod sirtaki-horovod, then install sirtaki-horovod again. "
            "For Horovod: pip uninstall sirtaki-horovod, then pip install --force-reinstall --no-deps horovod, "
            "because both own files in a folder named horovod. `import sirtaki.torch` works beside Horovod.",
            name="horovod",
        )


def place() -> str:
    """Version and folder of a real Horovod that this Python finds; "" if there is none."""
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        folders = (entry for entry in sys.path if Path(entry, _ONLY_HOROVOD_HAS).is_file())
        return next((f"Horovod in {entry}" for entry in folders), "")
    return f"Horovod {distribution.version} in {distribution.locate_file('')}"
