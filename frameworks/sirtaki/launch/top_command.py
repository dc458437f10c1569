"""`sirtakirun top [job]`: a table of a running job's ranks, anew each second. The ranks count in any case."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sirtaki.job.launcher import status
from sirtaki.launch import metrics, running_jobs
from sirtaki.launch.command_line.options import positive, seconds_of
from sirtaki.timing.rates import CAUSES, Numbers, Rates, rates

_WIDE = 200  # columns in a file or a pipe
_NO_RANK = "-: has not called init(), is busy, or has SIRTAKI_RECORDER=0"
_NO_LIBRARY = "needs the package {} (pip install 'sirtaki[timeline]'): {}"


@dataclass(frozen=True)
class Reading:
    """ranks: their numbers, None for a rank that has none now. when: seconds of a steady clock."""

    when: float
    title: str
    ranks: list[Numbers | None]


def main(words: Sequence[str]) -> int:
    """Returns 0 when the job has ended or the user has seen enough; 1 if there was nothing to see."""
    parser = argparse.ArgumentParser(prog="sirtakirun top", description="Shows how fast a running job goes.")
    parser.add_argument("job", nargs="?", type=int, help="process id of its sirtakirun; not needed if there is but one")
    parser.add_argument(
        "-d", "--delay", type=seconds_of, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("-n", "--count", type=positive, metavar="N", help="number of tables; without it until the end")
    parser.add_argument("--plot", metavar="PNG", help="at the end, draws what was seen")
    chosen = parser.parse_args(words)
    job = running_jobs.choose(chosen.job, "top")
    if not job or (chosen.plot is not None and not _can_plot(chosen.plot)):
        return 1
    seen: list[tuple[float, list[Rates | None]]] = []
    try:
        _show(_readings(job, max(0.05, chosen.delay), chosen.count), seen)
    except KeyboardInterrupt:
        pass
    except ImportError as error:
        print(f"sirtakirun: top {_NO_LIBRARY.format('rich', error)}", file=sys.stderr)
        return 1
    else:
        if not seen:
            print("sirtakirun: the job has ended before its ranks were seen twice", file=sys.stderr)
            return 1
    if seen and chosen.plot is not None:
        from sirtaki.timeline import plot

        plot.draw_rates(seen, chosen.plot)
    return 0


def _can_plot(path: str) -> bool:
    """Asked at the beginning, so that no session is lost at its end."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        print(f"sirtakirun: top --plot {_NO_LIBRARY.format('matplotlib', error)}", file=sys.stderr)
        return False
    reason = metrics.why_no_file(path)
    if not reason and os.path.splitext(path)[1][1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        reason = "the name must end as that of a picture does, for example in .png"
    if reason:
        print(f"sirtakirun: top --plot {path!r}: {reason}", file=sys.stderr)
    return not reason


def read(job: str) -> Reading | None:
    """None if the job has ended."""
    text = running_jobs.ask(job, status.NUMBERS)
    if not text:
        return None
    found = json.loads(text)
    return Reading(time.monotonic(), found["title"], found["ranks"])


def _readings(job: str, delay: float, count: int | None) -> Iterator[tuple[Reading, Reading]]:
    """Each reading with the one before."""
    before = read(job)
    while before is not None and (count is None or count > 0):
        time.sleep(delay)
        after = read(job)
        if after is None:
            return
        yield before, after
        before = after
        count = None if count is None else count - 1


def _show(readings: Iterator[tuple[Reading, Reading]], seen: list[tuple[float, list[Rates | None]]]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    with Live(console=console, auto_refresh=False) as live:
        for before, after in readings:
            found = rates_of_ranks(before, after)
            seen.append((after.when, found))
            if console.is_terminal:
                live.update(_table(after, found), refresh=True)
            else:
                console.print(_table(after, found))


def rates_of_ranks(before: Reading, after: Reading) -> list[Rates | None]:
    """None for a rank without numbers, and for one that has begun to count anew (shutdown() and init())."""
    seconds = after.when - before.when
    return [
        None if old is None or new is None or new["steps"] < old["steps"] else rates(old, new, seconds)
        for old, new in zip(before.ranks, after.ranks, strict=True)
    ]


def _table(reading: Reading, found: list[Rates | None]) -> Any:
    from rich.table import Table

    # Without borders, so that all columns have room on a terminal of 80.
    table = Table(title=reading.title, title_justify="left", header_style="", box=None, collapse_padding=True)
    table.pad_edge = False
    if None in reading.ranks:
        table.caption = _NO_RANK
    for name in ("rank", "steps", "steps/s", "waiting", *CAUSES, "MB/s", "came last"):
        table.add_column(name, justify="right", overflow="fold")
    first = found[0]
    for rank, (numbers, own) in enumerate(zip(reading.ranks, found, strict=True)):
        if numbers is None or own is None:
            table.add_row(str(rank), *["-"] * (len(table.columns) - 1))
            continue
        last = first.last.get(rank, 0.0) if first is not None else 0.0  # rank 0 counts the votes
        shares = [f"{share:.1%}" for share in (own.waiting, *own.parts.values())]
        table.add_row(
            str(rank), str(numbers["steps"]), f"{own.steps:.1f}", *shares, f"{own.bytes / 1e6:.1f}", f"{last:.0%}"
        )
    return table
