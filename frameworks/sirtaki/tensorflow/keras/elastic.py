"""The names of sirtaki.keras.elastic, under the module name that Horovod's programs import."""

from __future__ import annotations

from sirtaki.keras.elastic import __getattr__ as __getattr__
