"""What a rank's steps consist of, as a report and as one line about the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sirtaki import settings
from sirtaki.native import core
from sirtaki.timing import energy
from sirtaki.timing.text import summary_line

_NS = 1e-9
_NAMED = 16  # ranks in the closing report


def step_report() -> dict[str, Any]:
    """Where the time of this rank's training steps went. Local: other ranks need not call it. ValueError before init().

    steps: how many, counted from the end of the first one on. The other values are about all of them together:
    seconds; computing: the share of it in which the program did not wait; waiting: seconds by cause, which add up to
    the time that the program waited: late (another rank had not arrived), agreement (all had, and this rank did not
    know it yet), queue, copy (copying and adding up on this rank), wire (waiting for data), host (all was done, or the
    thread had no core); exchange: seconds in which data moved; hidden: the share of it in which the program did not
    wait, None if no data moved; last: for each rank that came last in a step, the number of those steps, and its mean
    lateness in seconds; without_core: seconds in which the thread was ready and had no core.
    latest, unfinished: the same for the last step, and since its end (without a training optimizer: since init()).
    energy: joules and joules_a_step of this host, or `unavailable` with the reason. lost_records: events that were
    overwritten before they were counted. With SIRTAKI_RECORDER=0: {"recorder": "off"}.

    >>> report = hvd.step_report()
    >>> report["rank"], report["size"]
    (0, 1)
    """
    rank, size = core.rank(), core.size()
    times = core.step_times()
    if times is None:
        return {"rank": rank, "size": size, "recorder": "off"}
    return {"rank": rank, "size": size, **_report(times), "energy": energy.report(times["steps"])}


def _report(times: Mapping[str, Any]) -> dict[str, Any]:
    last = [
        {"rank": rank, "steps": steps, "lateness": lateness * _NS / steps}
        for rank, (steps, lateness) in sorted(times["last"].items())
    ]
    return {
        "steps": times["steps"],
        **_part(times["total"]),
        "last": last,
        "latest": _part(times["latest"]),
        "unfinished": _part(times["open"]),
        "lost_records": times["lost"],
    }


def _part(times: Mapping[str, int]) -> dict[str, Any]:
    waited = sum(times[cause] for cause in summary_line.CAUSES)
    return {
        "seconds": times["length"] * _NS,
        "computing": 1 - waited / times["length"] if times["length"] else 1.0,
        "waiting": {cause: times[cause] * _NS for cause in summary_line.CAUSES},
        "exchange": times["exchange"] * _NS,
        "hidden": times["hidden"] / times["exchange"] if times["exchange"] else None,
        "without_core": times["delay"] * _NS,
    }


def closing_report() -> dict[str, Any] | None:
    """The report of a rank that leaves the job; None if nothing is to be said: no steps, or SIRTAKI_SUMMARY=0."""
    if not settings.has_summary():
        return None
    times = core.step_times()
    if times is None or not times["steps"]:
        return None
    report = {**_report(times), "energy": energy.report(times["steps"])}
    # The launcher names one rank, and a message must not grow with the number of ranks.
    worst = sorted(report["last"], key=lambda entry: entry["steps"] * entry["lateness"])[-_NAMED:]
    return {**report, "last": worst}


def own_line() -> str:
    """One line about this rank's steps so far; "" if there are none."""
    times = core.step_times()
    if times is None or not times["steps"]:
        return ""
    return summary_line.line([{**_report(times), "energy": energy.report(times["steps"])}])
