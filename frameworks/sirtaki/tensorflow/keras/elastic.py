"""The names of sirtaki.keras.elastic, where programs for Horovod look for them."""

from __future__ import annotations

from sirtaki.keras.elastic import __getattr__ as __getattr__
