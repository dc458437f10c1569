"""Elastic training is not available yet: every name of Horovod's module raises NotImplementedError."""

from __future__ import annotations

from typing import Any

_NAMES = ("ElasticSampler", "TorchState", "run")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        raise NotImplementedError(f"sirtaki.torch.elastic.{name}: elastic training is not available yet in Sirtaki")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
