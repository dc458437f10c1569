"""Where ranks meet without data: barrier, and join for ranks that have no more batches."""

from __future__ import annotations

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch import raw


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it."""
    raw.barrier(require_id(process_set))


def join(device: int = -1) -> int:
    """Says that this rank has no more batches, and blocks until all ranks have said so; returns the last one's rank.

    Until then this rank contributes zeros to the others' allreduces. device: the GPU that it does so on, by default the
    current one; of no meaning on the host.
    """
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(f"device must be an integer, got {device!r}")
    return raw.join(device)
