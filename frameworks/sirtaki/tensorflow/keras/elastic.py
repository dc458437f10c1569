"""The names of sirtaki.keras.elastic, under the module name that Horovod's programs import."""

from sirtaki.keras.elastic import *  # noqa: F403
from sirtaki.keras.elastic import __all__ as __all__
