"""The limit of open files, which is often low by default and may be raised by everybody up to a hard limit."""

from __future__ import annotations

import errno
import resource

_AT_ALL = 40
_FOR_EACH_RANK = 5  # in Hydra's processes: pipes for the output and the line to the rank


def raise_limit(ranks: int) -> None:
    """So that launcher and starter, which inherits it, can serve these ranks. Raises OSError with the number needed."""
    needed = _AT_ALL + _FOR_EACH_RANK * ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(
            errno.EMFILE,
            f"{ranks} rank{'s need' if ranks > 1 else ' needs'} {needed} open files, but the hard limit is {hard} "
            "(ulimit -Hn); ask the administrator for more, or start fewer ranks",
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
