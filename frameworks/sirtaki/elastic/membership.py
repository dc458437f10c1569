"""Leaving a job and joining the next one in the same process."""

from __future__ import annotations

from sirtaki import process_sets, runtime, settings
from sirtaki.native import core


def is_elastic() -> bool:
    """Whether the launcher replaces ranks of this job (SIRTAKI_ELASTIC)."""
    return settings.flag("ELASTIC")


def is_shared() -> bool:
    """Whether this process now has a rank in such a job."""
    return is_elastic() and core.is_initialized()


def reset() -> None:
    """Leaves the job, and joins it again with the ranks that it has now. Process sets are registered again.

    SystemExit(0) if this process has no place in the job any more.
    """
    dynamic = process_sets.keep_for_next_job()
    runtime.shutdown()
    runtime.init(process_sets="dynamic" if dynamic else None)
