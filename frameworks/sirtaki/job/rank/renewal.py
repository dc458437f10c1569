"""What adapters make anew when this process joins a job again: the other ranks, and their number, are not the same."""

from __future__ import annotations

from collections.abc import Callable

jobs = 0  # that this process has joined
_renewals: list[Callable[[], None]] = []


def at_each_job(renew: Callable[[], None]) -> None:
    """init() calls it when the job and its process sets are there."""
    _renewals.append(renew)


def run() -> None:
    """Called by init()."""
    global jobs
    jobs += 1
    for renew in _renewals:
        renew()
