"""Runs many jobs in which one thing goes wrong, and prints the table of docs/reliability.md.

Four of five runs are engines as threads with a faulty transport (fault_runs), the fifth real processes (processes.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import processes


@dataclass
class Row:
    """All runs of one kind of fault. `longest` in seconds."""

    runs: int = 0
    struck: int = 0
    right: int = 0
    named: int = 0
    told_by: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    complaints: list[str] = field(default_factory=list)


def of_threads(program: Path, runs: int, seed: int, at_once: int, rows: dict[str, Row]) -> None:
    """Adds the runs of fault_runs, by kind and traffic."""
    command = [str(program.resolve()), str(runs), str(seed), str(at_once)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    for line in output.splitlines():
        fields = line.split("\t")
        if fields[0] == "FAULT":
            rows["engine"].complaints.append(line)
            continue
        _, _, kind, traffic, struck, outcome, seconds, _ = fields
        row = rows["none" if kind == "none" else kind if kind in ("exception", "silent") else f"{traffic} {kind}"]
        row.runs += 1
        row.struck += struck == "struck"
        row.right += outcome == "right sums"
        row.named += outcome == "error"
        row.told_by["ranks"] += outcome == "error"
        row.longest = max(row.longest, float(seconds))


def of_processes(runs: int, seed: int, rows: dict[str, Row]) -> None:
    for number in range(runs):
        run = processes.Run.of_seed(seed, number)
        outcome = processes.execute(run)
        row = rows[f"process: {run.kind}"]
        row.runs += 1
        row.struck += run.kind != "none"
        row.right += not outcome.complaint and not outcome.cause
        if not outcome.complaint and outcome.cause:
            row.named += 1
            row.told_by[outcome.told_by] += 1
        row.longest = max(row.longest, outcome.seconds)
        if outcome.complaint:
            row.complaints.append(f"{number}: {run}: {outcome.complaint}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="fault_runs, compiled")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=6, help="jobs of threads at once")
    arguments = parser.parse_args()
    rows: dict[str, Row] = defaultdict(Row)
    of_threads(arguments.program, arguments.runs * 4 // 5, arguments.seed, arguments.at_once, rows)
    of_processes(arguments.runs - arguments.runs * 4 // 5, arguments.seed, rows)
    print("| fault | runs | fault happened | right sums | error with the cause | reported by | longest, s |")
    print("|---|---|---|---|---|---|---|")
    for name, row in sorted(rows.items()):
        if row.runs:
            told_by = ", ".join(f"{who} {count}" for who, count in sorted(row.told_by.items()) if count)
            counts = f"{row.runs} | {row.struck} | {row.right} | {row.named}"
            print(f"| {name} | {counts} | {told_by} | {row.longest:.0f} |")
    complaints = [complaint for row in rows.values() for complaint in row.complaints]
    print(f"\n{sum(row.runs for row in rows.values())} runs, {len(complaints)} of them wrong")
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
