"""Join, for ranks that have no more batches."""

from __future__ import annotations

from sirtaki.torch.ops import verbs


def join(device: int = -1) -> int:
    """Says that this rank has no more batches, and blocks until all ranks have said so; returns the last one's rank.

    Until then this rank contributes zeros to the others' allreduces. device: the GPU that it does so on, by default the
    current one; of no meaning on the host.
    """
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(f"device must be an integer, got {device!r}")
    return verbs.join(device)
