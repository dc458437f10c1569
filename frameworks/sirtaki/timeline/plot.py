"""Draws a timeline: the steps of each rank over time with their parts, and one step with its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sirtaki.timeline import merge
from sirtaki.timeline.shared_file import Event
from sirtaki.timeline.spans import STEPS, WAITS
from sirtaki.timing.rates import Rates

_COLORS = {"computing": "#c9d6df", "waiting for ranks": "#e4572e", "exchange": "#4d9de0", "other waiting": "#f3a712"}
_MOST_STEPS = 400  # bars of a rank


@dataclass
class _Rank:
    """Events by row, in the order of time."""

    name: str
    rows: dict[str, list[Event]] = field(default_factory=dict)

    def of(self, row: str) -> list[Event]:
        return sorted(self.rows.get(row, []), key=lambda event: event["ts"])

    def named(self, begins: str) -> list[Event]:
        return [e for row in self.rows.values() for e in row if e["ph"] == "X" and e["name"].startswith(begins)]


def draw(path: str, picture: str) -> None:
    """Writes a PNG, or what the picture's suffix says. ValueError without matplotlib, or for a file without steps."""
    figures = _figures()
    found = merge.read(path)
    if not found.is_timeline:
        raise ValueError(f"{path} is no timeline of Sirtaki")
    ranks = _ranks(found.events)
    parts = {number: step_parts(rank) for number, rank in ranks.items()}
    if not any(parts.values()):
        raise ValueError(f"{path} has no steps; they end with the step of a DistributedOptimizer")
    figure = figures.Figure(figsize=(10, 1.6 + 1.5 * len(ranks)), layout="constrained")
    over_time, one_step = figure.subplots(2, 1, height_ratios=(1, 1.4))
    _draw_steps(over_time, parts)
    _draw_step(one_step, ranks)
    figure.savefig(picture, dpi=90)


def draw_rates(seen: Sequence[tuple[float, Sequence[Rates | None]]], picture: str) -> None:
    """What `sirtakirun top` saw. seen: the time of each reading in seconds, and the rates of each rank."""
    figure = _figures().Figure(figsize=(10, 5), layout="constrained")
    speed, shares = figure.subplots(2, 1, sharex=True)
    times = [when - seen[0][0] for when, _ in seen]
    for rank in range(len(seen[0][1]) if seen else 0):
        own = [ranks[rank] for _, ranks in seen]
        speed.plot(times, [found.steps if found else None for found in own], label=f"rank {rank}")
        shares.plot(times, [found.waiting if found else None for found in own])
    speed.set_ylabel("steps/s")
    speed.set_ylim(bottom=0)
    shares.set_ylabel("share of time waiting")
    shares.set_ylim(0, 1)
    shares.set_xlabel("s")
    if seen:
        speed.legend(fontsize="small")
    figure.savefig(picture, dpi=90)


def _figures() -> Any:
    try:
        from matplotlib import figure
    except ImportError as error:
        raise ValueError(f"a picture needs matplotlib (pip install 'sirtaki[timeline]'): {error}") from None
    return figure


def _ranks(events: Sequence[Event]) -> dict[int, _Rank]:
    ranks: dict[int, _Rank] = {}
    names: dict[tuple[int, int], str] = {}
    for event in events:
        if event["name"] == "process_name":
            ranks[event["pid"]] = _Rank(event["args"]["name"])
        elif event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] != "M":
            ranks[event["pid"]].rows.setdefault(names[event["pid"], event["tid"]], []).append(event)
    return dict(sorted(ranks.items()))


def _inside(events: Sequence[Event], begin: float, end: float) -> list[tuple[float, float]]:
    """Parts of the events within a time, joined where they overlap."""
    joined: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event["ts"]):
        since, until = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
        if since >= until:
            continue
        if joined and since <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], until)
        else:
            joined.append((since, until))
    return joined


def _length(parts: Sequence[tuple[float, float]]) -> float:
    return sum(until - since for since, until in parts)


def _overlap(parts: Sequence[tuple[float, float]], events: Sequence[Event]) -> float:
    return sum(_length(_inside(events, since, until)) for since, until in parts)


def step_parts(rank: _Rank) -> list[dict[str, float]]:
    """For each step its number and its parts, in microseconds; the parts add up to the step."""
    waits, negotiations, exchanges = rank.of(WAITS), rank.named("NEGOTIATE_"), rank.named("EXCHANGE")
    steps = []
    for step in rank.of(STEPS):
        if step["ph"] != "X":
            continue
        begin, end = step["ts"], step["ts"] + step["dur"]
        waited = _inside(waits, begin, end)
        exchange = _overlap(waited, exchanges)
        late = min(_overlap(waited, negotiations), _length(waited) - exchange)
        steps.append(
            {
                "step": int(step["name"].split()[1]),
                "computing": end - begin - _length(waited),
                "waiting for ranks": late,
                "exchange": exchange,
                "other waiting": _length(waited) - exchange - late,
            }
        )
    return steps


def _draw_steps(axes: Any, parts: dict[int, list[dict[str, float]]]) -> None:
    """One bar for each step and rank; the ranks of a step stand side by side."""
    width = 0.8 / len(parts)
    for place, (_, steps) in enumerate(parts.items()):
        shown = steps[-_MOST_STEPS:]
        at = [step["step"] + place * width for step in shown]
        below = [0.0] * len(shown)
        for name, color in _COLORS.items():
            heights = [step[name] / 1e3 for step in shown]
            axes.bar(at, heights, width, below, align="edge", color=color, label=name if place == 0 else None)
            below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xlabel("step; within it one bar for each rank")
    axes.set_ylabel("ms")
    axes.legend(loc="upper right", ncols=4, fontsize="small")


def _draw_step(axes: Any, ranks: dict[int, _Rank]) -> None:
    """The middle step of the first rank, on all ranks."""
    steps = [step for step in next(iter(ranks.values())).of(STEPS) if step["ph"] == "X"]
    step = steps[len(steps) // 2]
    begin, end = step["ts"], step["ts"] + step["dur"]
    labels: list[str] = []
    for rank in ranks.values():
        negotiations, exchanges = rank.named("NEGOTIATE_"), rank.named("EXCHANGE")
        for row, events, color in (
            ("waiting", rank.of(WAITS), _COLORS["other waiting"]),
            ("negotiating", negotiations, _COLORS["waiting for ranks"]),
            ("exchange", exchanges, _COLORS["exchange"]),
        ):
            bars = [((since - begin) / 1e3, (until - since) / 1e3) for since, until in _inside(events, begin, end)]
            axes.broken_barh(bars, (-len(labels) - 0.8, 0.8), color=color)
            labels.append(f"{rank.name.partition(' on ')[0]}: {row}")
    axes.set_yticks([-number - 0.4 for number in range(len(labels))], labels, fontsize="small")
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_xlabel(f"{step['name']}, ms")
