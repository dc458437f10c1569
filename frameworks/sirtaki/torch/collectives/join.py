"""join: for ranks that have no more batches."""

from __future__ import annotations

from sirtaki.torch.ops import verbs


def join(device: int = -1) -> int:
    """Call it when this rank has no more batches. Blocks until all ranks have called it; returns the last caller.

    Until then this rank takes part in the allreduces of the others without changing their results: an average counts
    the ranks that have not joined. device: the GPU for this rank's part, by default the current one; ignored without a
    GPU.

    >>> hvd.join()  # the last rank that called it
    0
    """
    if isinstance(device, bool) or not isinstance(device, int):
        raise ValueError(f"device must be an integer, got {device!r}")
    return verbs.join(device)
