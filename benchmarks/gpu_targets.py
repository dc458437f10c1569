"""How the figures of gpu_suite.sh stand to their goals: one table, and the same as JSON.

    python benchmarks/gpu_targets.py FOLDER/*.json --json FOLDER/targets.json

Every figure is a ratio of two things measured in one run.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# By the name of the run: the goal for captured training as a share of the graph without communication.
CAPTURED = {
    "resnet50-bfloat16": 0.97,
    "resnet50-float32": 0.97,
    "vgg16-bfloat16": 0.96,
    "encoder-bfloat16": 0.90,
    "encoder-bfloat16-wire": 0.95,
}


@dataclass
class Row:
    run: str
    figure: str
    measured: float
    goal: float
    least: bool = True  # whether the goal is the least that is wanted, not the most

    @property
    def reached(self) -> bool:
        return self.measured >= self.goal if self.least else self.measured <= self.goal


def training(run: str, facts: dict) -> Iterator[Row]:
    ways = facts["ways"]
    speed = {name: way["share_of_no_communication"] for name, way in ways.items()}
    eager = speed["Sirtaki, eager"]
    best = max(speed[name] for name in speed if "DDP" in name or "FSDP" in name)
    yield Row(run, "eager / best eager way of torch", eager / best, 1.0)
    yield Row(run, "eager / coupled", eager / speed["coupled"], 0.98)
    graph = ways["graph, no communication"]["sirtaki_to_it"]
    yield Row(run, "captured / graph without communication", graph, CAPTURED[run])
    if (by_hand := ways.get("graph, torch's NCCL")) is not None:
        yield Row(run, "captured / graph of torch's NCCL", by_hand["sirtaki_to_it"], 1.0)


def collectives(run: str, rows: list[dict]) -> Iterator[Row]:
    times = {(row["verb"], row["size"], row["way"]): row for row in rows}
    for (verb, size, way), ours in times.items():
        if way == "torch":
            continue
        torch = times[verb, size, "torch"]
        label = f"{verb}, {size}" + (", grouped" if "grouped" in way else "")
        host, gpu = ours["host"] / torch["host"], ours["gpu"] / torch["gpu"]
        if "gradients" in size:
            if "grouped" in way:
                yield Row(run, f"{label}: GPU's time / torch's", gpu, 0.15, least=False)
        elif ours["bytes"] >= 64 << 20:
            yield Row(run, f"{label}: bus bandwidth / torch's", 1 / gpu, 0.99)
        elif ours["bytes"] <= 64 << 10:
            goal = 0.5 if verb == "allreduce" else 1.0
            yield Row(run, f"{label}: host's time / torch's", host, goal, least=False)
            yield Row(run, f"{label}: GPU's time / torch's", gpu, goal, least=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="what the runs wrote with --json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for file in arguments.files:
        if file.stem == "collectives":
            rows += collectives(file.stem, json.loads(file.read_text()))
        elif file.stem in CAPTURED:
            rows += training(file.stem, json.loads(file.read_text()))
    print(f"{'run':24}{'figure':52}{'measured':>9}{'goal':>9}")
    for row in rows:
        sign = ">=" if row.least else "<="
        print(
            f"{row.run:24}{row.figure:52}{row.measured:9.3f}  {sign} {row.goal:.2f}{'' if row.reached else '  missed'}"
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps([{**asdict(row), "reached": row.reached} for row in rows], indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
