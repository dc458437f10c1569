"""Draws the first table of docs/performance.md, for the README. It needs matplotlib (extra `bench`).

python benchmarks/performance_plot.py docs/performance.md docs/performance.png
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def read_table(text: str) -> list[tuple[int, float, float]]:
    """(bytes, microseconds of MPI, microseconds of Sirtaki) of each row, on near cores."""
    rows = re.findall(
        r"^\| (\d+) ?(\w*) \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", text, re.M
    )
    if not rows:
        raise ValueError("the document has no table of 'bytes, MPI, plane, ratio' twice")
    return [(int(count) * _UNITS[unit], float(mpi), float(own)) for count, unit, mpi, own in rows]


def draw(rows: list[tuple[int, float, float]], path: str) -> None:
    sizes, mpi, own = zip(*rows, strict=True)
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    axes.plot(sizes, mpi, "o-", color="#8a8a8a", label="MPI (MPICH 5.0.2)")
    axes.plot(sizes, own, "o-", color="#1f6f8b", label="Sirtaki's shared-memory plane")
    for size, theirs, ours in rows[::2]:
        axes.annotate(f"{theirs / ours:.1f}x", (size, ours), (6, -9), textcoords="offset points", fontsize=8)
    axes.set(
        xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds", title="An allreduce of two ranks of one host"
    )
    axes.set_xticks(
        [1 << 6, 1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26], ["64", "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]
    )
    axes.set_ylim(bottom=0.15)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(read_table(Path(sys.argv[1]).read_text()), sys.argv[2])
