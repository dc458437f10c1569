"""Slots that the launcher has added to an elastic job or removed from it."""

from __future__ import annotations


def take() -> tuple[float, int] | None:
    """(time, what has changed) of the next update that was not taken yet; None if there is none."""
    return None
