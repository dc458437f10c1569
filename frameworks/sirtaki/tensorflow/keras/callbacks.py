"""The names of sirtaki.keras.callbacks, under the module name that Horovod's programs import."""

from __future__ import annotations

from sirtaki.keras.callbacks import *  # noqa: F403
from sirtaki.keras.callbacks import __all__ as __all__
