"""One line about the steps of a job, from the reports of its ranks. Needs no core: the launcher uses it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CAUSES = ("late", "agreement", "queue", "copy", "wire", "host")
_STARVED = 0.1  # of the time, ready to run without a core: from then on the line says so
_SMALL = 0.0005  # a share that would be shown as 0.0%

Report = Mapping[str, Any]


def line(reports: Sequence[Report]) -> str:
    """One line about the steps of a job, from the reports of some or all of its ranks."""
    seconds = sum(report["seconds"] for report in reports)
    waiting = {cause: sum(report["waiting"][cause] for report in reports) / seconds for cause in CAUSES}
    waited = sum(waiting.values())
    steps = max(report["steps"] for report in reports)
    worst = _worst(reports)
    words = [f"{steps} steps: {1 - waited:.1%} computing", f"waited {waited:.1%}{_causes(waiting, worst)}"]
    exchange = sum(report["exchange"] for report in reports)
    if exchange:
        hidden = sum(report["exchange"] * (report["hidden"] or 0) for report in reports) / exchange
        words.append(f"hidden {hidden:.0%} of the exchange")
    if worst is not None:
        words.append(
            f"rank {worst['rank']} was last in {worst['steps'] / steps:.0%} of the steps, by {_time(worst['lateness'])}"
        )
    without = sum(report["without_core"] for report in reports) / seconds
    if without >= _STARVED:
        words.append(f"starved of cores: {without:.0%} of the time threads were ready to run and had no core")
    joules = sum(report["energy"].get("joules_a_step", 0) for report in reports)
    if joules:
        words.append(f"{joules:.3g} J a step")
    return "; ".join(words)


def _causes(waiting: Mapping[str, float], worst: Mapping[str, Any] | None) -> str:
    names = {cause: cause for cause in CAUSES} | {"late": f"rank {worst['rank']} late" if worst else "late ranks"}
    parts = [f"{share:.1%} {names[cause]}" for cause, share in waiting.items() if share >= _SMALL]
    return ": " + ", ".join(parts) if parts else ""


def _worst(reports: Sequence[Report]) -> dict[str, Any] | None:
    """The rank that cost the most. All ranks know who came last, so the report with the most steps is enough."""
    last = max(reports, key=lambda report: report["steps"])["last"]
    return max(last, key=lambda entry: entry["steps"] * entry["lateness"], default=None)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e6:.0f} us"
