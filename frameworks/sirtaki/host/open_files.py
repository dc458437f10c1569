"""The limit of open files. It is often low by default, and any user may raise it up to a hard limit."""

from __future__ import annotations

import errno
import resource

_AT_ALL = 40
_FOR_RANK_HERE = 5  # in Hydra's processes: pipes for the output and the line to the rank
_FOR_RANK_ELSEWHERE = 2  # its worker's connection, and a share of its host's files


def provide(here: int, elsewhere: int) -> None:
    """Raises the soft limit so that launcher and starter, which inherits it, have enough files for the ranks.

    OSError with the required number if the hard limit is too low.
    """
    needed = _AT_ALL + _FOR_RANK_HERE * here + _FOR_RANK_ELSEWHERE * elsewhere
    hard = raise_to(needed)
    if hard < needed:
        ranks = here + elsewhere
        raise OSError(
            errno.EMFILE,
            f"{ranks} rank{'s need' if ranks > 1 else ' needs'} {needed} open files, but the hard limit is {hard} "
            "(ulimit -Hn); ask the administrator for more, or start fewer ranks",
        )


def provide_on_other_host(ranks: int) -> None:
    """Raises the limit as far as possible: the number of ranks on this host is unknown."""
    raise_to(_AT_ALL + _FOR_RANK_HERE * ranks)


def raise_to(needed: int) -> float:
    """Raises the soft limit to `needed`, as far as possible. Returns the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = float("inf") if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < min(needed, most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(needed, most)), hard))
    return most
