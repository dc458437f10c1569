"""Registers the backend "sirtaki" with torch.distributed.

Where Sirtaki is installed, torch calls register() at the end of `import torch` (an entry point in pyproject.toml). So
this module imports nothing of Sirtaki before a program asks for the backend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

NAME = "sirtaki"
_SCHEME = "env"
_ANNOUNCED = ("RANK", "WORLD_SIZE")  # by torchrun and its like


def register() -> None:
    """Makes init_process_group("sirtaki") work; also as "cpu:sirtaki,cuda:sirtaki". No effect at a second call.

    From now on `env://` also works where a starter of MPI has started the ranks and no variable is set.
    """
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers[_SCHEME] = _Handler(handlers[_SCHEME])


def _create(options: Any, backend_options: Any = None) -> Any:
    """torch calls it on each member of a new group."""
    from sirtaki.torch.process_group.group import Group

    return Group(options)


class _Handler:
    """torch's env://, and ours where RANK and WORLD_SIZE are missing."""

    def __init__(self, own: Callable[..., Iterator[Any]]) -> None:
        self._own = own

    def __call__(self, url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
        if "?" not in url and not any(name in os.environ for name in _ANNOUNCED):
            from sirtaki.torch.process_group import rendezvous

            if rendezvous.is_started():
                return rendezvous.stores(timeout)
        return self._own(url, timeout=timeout, **options)
