"""Horovod's modules, each with the names of a module of Sirtaki.

They have no files. So next to a Horovod in the same folder only `horovod/__init__.py` exists twice, and each module
stays importable from one place or the other, never half from both.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "horovod.common": "sirtaki",
    "horovod.common.basics": "sirtaki",
    "horovod.common.elastic": "horovod._shim.elastic",
    "horovod.common.exceptions": "sirtaki.exceptions",
    "horovod.common.process_sets": "sirtaki.process_sets",
    "horovod.common.util": "horovod._shim.util",
    "horovod.keras": "sirtaki.keras",
    "horovod.keras.callbacks": "sirtaki.keras.callbacks",
    "horovod.keras.elastic": "sirtaki.keras.elastic",
    "horovod.runner": "sirtaki",
    "horovod.runner.launch": "horovod._shim.launch",
    "horovod.tensorflow": "sirtaki.tensorflow",
    "horovod.tensorflow.compression": "sirtaki.tensorflow.compression",
    "horovod.tensorflow.elastic": "sirtaki.tensorflow.elastic",
    "horovod.tensorflow.functions": "sirtaki.tensorflow",
    "horovod.tensorflow.gradient_aggregation": "sirtaki.tensorflow",
    "horovod.tensorflow.keras": "sirtaki.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "sirtaki.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "sirtaki.tensorflow.keras.elastic",
    "horovod.tensorflow.mpi_ops": "sirtaki.tensorflow",
    "horovod.tensorflow.sync_batch_norm": "sirtaki.tensorflow",
    "horovod.torch": "sirtaki.torch",
    "horovod.torch.compression": "sirtaki.torch.compression",
    "horovod.torch.elastic": "sirtaki.torch.elastic",
    "horovod.torch.elastic.sampler": "sirtaki.torch.elastic",
    "horovod.torch.elastic.state": "sirtaki.torch.elastic",
    "horovod.torch.functions": "sirtaki.torch",
    "horovod.torch.mpi_ops": "sirtaki.torch",
    "horovod.torch.optimizer": "sirtaki.torch",
    "horovod.torch.sync_batch_norm": "sirtaki.torch",
}


class _Finder(MetaPathFinder):
    """Makes the modules of the table, and no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        holds_others = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, _Loader(), origin=MODULES[fullname], is_package=holds_others)


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        """Each name is looked up when it is used, because Sirtaki loads some parts, such as Keras, only then."""
        real = importlib.import_module(MODULES[module.__name__])

        def look_up(name: str) -> Any:
            if name.startswith("__"):  # a __path__ would make this module a package with copies of Sirtaki's modules
                raise AttributeError(name)
            try:
                return getattr(real, name)
            except AttributeError:
                raise AttributeError(
                    f"{module.__name__} has no {name!r}: neither has {real.__name__}, which is behind it"
                ) from None

        public = getattr(real, "__all__", [name for name in dir(real) if not name.startswith("_")])
        module.__doc__ = f"{real.__name__} by Horovod's name."
        module.__dict__.update(__all__=public, __getattr__=look_up, __dir__=lambda: sorted({*module.__dict__, *public}))


def install() -> None:
    """Makes the modules importable; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
