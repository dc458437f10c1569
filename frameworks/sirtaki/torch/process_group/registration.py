"""Registers the backend "sirtaki" with torch. It imports little: the entry point calls it at each `import torch`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "sirtaki"


def register() -> None:
    """Makes init_process_group("sirtaki") work; also as "cpu:sirtaki,cuda:sirtaki". No effect at a second call."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    from sirtaki.torch.process_group import rendezvous

    rendezvous.install()


def _create(options: Any, backend_options: Any = None) -> Any:
    """torch calls it on each member of a new group."""
    from sirtaki.torch.process_group.group import Group

    return Group(options)
