"""Horovod's check whether an adapter was built. Sirtaki's adapters are built for every framework at once."""

from __future__ import annotations

import importlib
from typing import Any

from sirtaki.native import AbsentCore, core

_ADAPTERS = ("keras", "tensorflow", "tensorflow.keras", "torch")


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Returns if the adapter can be used. Otherwise ImportError with the loader's message.

    ext_name: "horovod.torch" or "sirtaki.torch", and likewise for the other frameworks. ext_env_var, pkg_path, args:
    ignored; Horovod's programs pass them.
    """
    adapter = ext_name.partition(".")[2]
    if adapter not in _ADAPTERS:
        known = ", ".join(f"sirtaki.{name}" for name in _ADAPTERS)
        raise ImportError(f"{ext_name!r}: Sirtaki has no adapter of that name; it has {known}")
    if isinstance(core, AbsentCore):
        raise ImportError(core.reason)
    importlib.import_module(f"sirtaki.{adapter}")
