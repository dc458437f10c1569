"""The table of benchmarks/gpu_suite.sh: which figures stand in it, and which of them reach their goals."""

import json
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def way(share: float, to_it: float) -> dict[str, float]:
    return {"share_of_no_communication": share, "sirtaki_to_it": to_it}


def test_table_of_goals(tmp_path):
    ways = {
        "Sirtaki, captured": way(1.4, 1.0),
        "graph, no communication": way(1.5, 0.9),
        "Sirtaki, eager": way(0.96, 1.5),
        "coupled": way(0.97, 1.4),
        "DDP": way(0.8, 1.7),
        "tuned DDP": way(0.98, 1.4),
    }
    (tmp_path / "vgg16-bfloat16.json").write_text(json.dumps({"ways": ways}))
    rows = [
        {"verb": verb, "size": size, "bytes": nbytes, "way": name, "host": host, "gpu": gpu}
        for verb, size, nbytes, name, host, gpu in (
            ("allreduce", "1KiB", 1024, "torch", 10.0, 20.0),
            ("allreduce", "1KiB", 1024, "Sirtaki", 4.0, 16.0),
            ("alltoall", "64MiB", 64 << 20, "torch", 1.0, 100.0),
            ("alltoall", "64MiB", 64 << 20, "Sirtaki", 1.0, 100.0),
        )
    ]
    (tmp_path / "collectives.json").write_text(json.dumps(rows))
    files = sorted(tmp_path.glob("*.json"))
    out = tmp_path / "targets"
    command = [sys.executable, TOP / "benchmarks/gpu_targets.py", *files, "--json", out]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {row["figure"]: (round(row["measured"], 3), row["reached"]) for row in json.loads(out.read_text())}
    assert found == {
        "allreduce, 1KiB: host's time / torch's": (0.4, True),
        "allreduce, 1KiB: GPU's time / torch's": (0.8, False),
        "alltoall, 64MiB: bus bandwidth / torch's": (1.0, True),
        "eager / best eager way of torch": (0.98, False),
        "eager / coupled": (0.99, True),
        "captured / graph without communication": (0.9, False),
    }
    assert printed.count("missed") == 3
