"""What collective_benchmark.py prints, writes and draws: medians, percentiles, ratios to raw MPI, bus bandwidth."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import byte_sizes
import numpy as np

SCHEMA = 1
PERCENTILES = (5, 10, 90, 95)
Figures = dict[str, Any]  # of one way, and of all ways by name


def duration(stamps: Sequence[tuple[float, float]], one_clock: bool) -> float:
    """Seconds of an operation, from each rank's start and end."""
    starts, ends = zip(*stamps, strict=True)
    return max(ends) - max(starts) if one_clock else max(end - start for start, end in stamps)


def bus_bandwidth(nbytes: int, ranks: int, seconds: float) -> float:
    """MB/s: what each link carries if every rank sends and receives no more than an allreduce needs."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds / 1e6


def summarise(seconds: dict[str, list[float]], nbytes: int, ranks: int) -> Figures:
    """The figures of each way; "MPI" stands for the better of MPI's ways, which all are compared to."""
    ways: Figures = {}
    for name, samples in seconds.items():
        spread = {f"p{share}": float(np.percentile(samples, share)) for share in PERCENTILES}
        ways[name] = {"median": float(np.median(samples)), **spread, "samples": len(samples)}
    best = min((name for name in ways if name.startswith("MPI ")), key=lambda name: ways[name]["median"])
    ways = {"MPI": {**ways[best], "way": best}, **ways}
    for figures in ways.values():
        figures["to_mpi"] = figures["median"] / ways["MPI"]["median"]
        figures["bus_mb_s"] = bus_bandwidth(nbytes, ranks, figures["median"])
    return ways


def peers(ways: Figures) -> list[str]:
    """What gets a column or a curve: MPI once, by its better way."""
    return [name for name in ways if not name.startswith("MPI ")]


def number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def spread(figures: Figures, scale: float) -> str:
    median, low, high = (number(figures[key] * scale) for key in ("median", "p5", "p95"))
    return f"{median} ({low}-{high})"


def sizes_table(rows: list[Figures]) -> list[str]:
    names = peers(rows[0]["ways"])
    lines = ["", "Allreduce of float32, microseconds until the last rank has left: median (5th-95th percentile)"]
    lines.append(f"{'':>10}" + "".join(f"{name:>25}" for name in names))
    for row in rows:
        cells = "".join(f"{spread(row['ways'][name], 1e6):>25}" for name in names)
        lines.append(f"{byte_sizes.show(row['bytes']):>10}{cells}")
    lines += ["", "Time over that of raw MPI's better way (below 1: faster), and bus bandwidth in MB/s"]
    lines.append(
        f"{'':>10}"
        + "".join(f"{f'{name}/MPI':>13}" for name in names[1:])
        + " |"
        + "".join(f"{name:>9}" for name in names)
    )
    for row in rows:
        ways = row["ways"]
        ratios = "".join(f"{ways[name]['to_mpi']:13.2f}" for name in names[1:])
        bandwidths = "".join(f"{number(ways[name]['bus_mb_s']):>9}" for name in names)
        lines.append(f"{byte_sizes.show(row['bytes']):>10}{ratios} |{bandwidths}  {ways['MPI']['way']}")
    return lines


def gradients_table(gradients: Figures) -> list[str]:
    ways = gradients["ways"]
    ours = ways["Sirtaki, asynchronous"]["median"]
    count, elements = gradients["tensors"], gradients["elements"]
    lines = ["", f"The {count} gradients of ResNet-50 ({elements:,} float32), submitted in random order"]
    lines.append(
        "One flat buffer is taken as already packed; asynchronous: all in flight, each tensor a call of its own"
    )
    lines.append(f"{'':>34}{'milliseconds (5th-95th)':>26}{'/ best MPI':>12}{'/ Sirtaki, asynchronous':>25}")
    for name in ways:
        if name != "MPI":
            figures = ways[name]
            ratios = f"{figures['to_mpi']:12.2f}{figures['median'] / ours:25.2f}"
            lines.append(f"{name:>34}{spread(figures, 1e3):>26}{ratios}")
    return lines


def verbs_table(rows: list[Figures]) -> list[str]:
    """One line for each verb, size and number of calls: MPI's better way, then the others and their ratios to it."""
    names = list(dict.fromkeys(name for row in rows for name in peers(row["ways"])))
    lines = ["", "float32, microseconds until the last rank has left: median, and in brackets its share of MPI's time"]
    lines.append(
        f"{'verb':<14}{'bytes':>8}{'calls':>6}" + "".join(f"{name:>24}" for name in names) + "  MPI's better way"
    )
    for row in rows:
        line = f"{row['verb']:<14}{byte_sizes.show(row['bytes']):>8}{row['calls']:>6}"
        for name in names:
            figures = row["ways"].get(name)
            text = f"{number(figures['median'] * 1e6)} ({figures['to_mpi']:.2f})" if figures else "-"
            line += f"{text:>24}"
        lines.append(f"{line}  {row['ways']['MPI']['way']}")
    return lines


def write_json(file: Path, facts: Figures, **figures: Any) -> None:
    """All times in seconds. figures: tables by name."""
    result = {"schema": SCHEMA, "facts": facts, **figures}
    file.write_text(json.dumps(result, indent=2) + "\n")


def draw(file: Path, facts: Figures, rows: list[Figures]) -> None:
    """Time and bus bandwidth over size, a curve for each peer; the band goes from the 5th to the 95th percentile."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    time, bandwidth = figure.subplots(1, 2)
    nbytes = [row["bytes"] for row in rows]
    for name in peers(rows[0]["ways"]):
        curve = {key: [row["ways"][name][key] for row in rows] for key in ("median", "p5", "p95", "bus_mb_s")}
        style = {"label": name, "marker": "o", "markersize": 3, "linestyle": ":" if name == "copy" else "-"}
        (line,) = time.plot(nbytes, [value * 1e6 for value in curve["median"]], **style)
        low, high = ([value * 1e6 for value in curve[key]] for key in ("p5", "p95"))
        time.fill_between(nbytes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        bandwidth.plot(nbytes, curve["bus_mb_s"], **style)
    time.set(title="Time until the last rank has left", ylabel="microseconds")
    bandwidth.set(title="Bus bandwidth", ylabel="MB/s")
    for axes in (time, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(nbytes, [byte_sizes.show(size) for size in nbytes], rotation=45)
        axes.set_xlabel("size")
        axes.grid(alpha=0.3)
    time.legend()
    figure.suptitle(f"Allreduce of float32, {facts['size']} ranks, data plane: {facts['data_plane']}")
    figure.savefig(file, format="png", dpi=120)
