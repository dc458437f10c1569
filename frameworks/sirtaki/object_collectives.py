"""Calls without tensors, the same in every adapter: Python objects for all ranks, and a barrier."""

from __future__ import annotations

from typing import Any

from sirtaki import exchange
from sirtaki.checks.arguments import checked_root
from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object on every rank, by cloudpickle. The root gets its own object; obj of other ranks is ignored.

    >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
    {'epoch': 3}
    """
    return exchange.broadcast_object(obj, checked_root(root_rank), name, require_id(process_set))


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks of the set in the order of ranks, pickled by cloudpickle.

    >>> hvd.allgather_object(("rank", hvd.rank()))
    [('rank', 0)]
    """
    return exchange.allgather_object(obj, name, require_id(process_set))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it.

    >>> hvd.barrier()
    """
    group = require_id(process_set)
    core.submit(core.VERBS["barrier"], "", [], process_set=group, site=call_site(), awaited=True).wait()
