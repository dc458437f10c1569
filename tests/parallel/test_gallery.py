"""The gallery's programs on two ranks: each shows what its first line says, in less than 120 lines."""

import re
import sys
from pathlib import Path

import jobs
import pytest

GALLERY = Path(__file__).resolve().parents[2] / "examples/gallery"

# What rank 0 prints, and what the numbers in it must satisfy.
TORCH = {
    "kmeans.py": (r"inertia (\S+); one process: (\S+)\n", lambda ours, alone: abs(ours - alone) < 1e-6 * alone),
    "local_sgd.py --steps=160": (
        r"after 16 step\(s\): loss (\S+), (\d+) exchanges",
        lambda loss, n: loss < 0.95 and n == 10,
    ),
    "gan.py --steps=20": (
        r"(\d+) samples of 2 rank\(s\): mean (\S+),",
        lambda count, mean: count == 1024 and mean > -1,
    ),
    "mixed_precision.py --steps=60": (
        r"loss (\S+) in float32, (\S+) in mixed",
        lambda a, b: abs(a - b) < 0.05 and b < 1,
    ),
    "uneven_data.py": (r"\[8, 11\]; accuracy (\S+) over (\d+)", lambda share, count: share > 0.85 and count == 282),
    "sparse_embedding.py": (
        r"at most (\d+) rows.*, (\d+) as a table",
        lambda rows, table: rows <= 128 < table == 20000,
    ),
}
# Runs them one after the other in one job, as importing torch takes longer than all of them.
PROGRAM = f"""
import runpy, sys, traceback
import torch
torch.set_num_threads(1)
for words in sys.argv[1:]:
    name, *sys.argv[1:] = words.split()
    runpy.run_path({str(GALLERY)!r} + "/" + name, run_name="__main__")
"""


def output_of(tmp_path: Path, *programs: str) -> str:
    script, output = tmp_path / "program.py", tmp_path / "output"
    script.write_text(PROGRAM)
    job = jobs.start(2, [sys.executable, str(script), *programs], output, {"KERAS_BACKEND": "tensorflow"})
    try:
        code = job.wait(300)
    finally:
        jobs.kill(job)
    text = output.read_text(errors="replace")
    assert code == 0, text
    return text


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in:\n{text}"
    return [float(number) for number in found.groups()]


def test_programs_of_torch(tmp_path: Path) -> None:
    text = output_of(tmp_path, *TORCH)
    for name, (pattern, holds) in TORCH.items():
        assert holds(*numbers(pattern, text)), f"{name}:\n{text}"
    assert numbers(r"difference of a center: (\S+)", text)[0] < 1e-9
    assert numbers(r"difference of a weight: (\S+)", text)[0] < 1e-5


@pytest.mark.long
def test_generator_learns_the_distribution(tmp_path: Path) -> None:
    mean, deviation = numbers(r"mean (\S+), deviation (\S+)", output_of(tmp_path, "gan.py"))
    assert abs(mean - 4) < 0.5 and deviation < 1.5


@pytest.mark.long
def test_large_batches_need_a_warm_up(tmp_path: Path) -> None:
    text = output_of(tmp_path, "large_batch.py")
    small, large, warmed = (float(loss) for loss in re.findall(r"mean loss (\S+) of", text))
    assert small < 0.2 and warmed < 0.5 and not large < 2 * warmed, text


@pytest.mark.long
def test_keras_custom_loop(tmp_path: Path) -> None:
    text = output_of(tmp_path, "keras_custom_loop.py")
    assert numbers(r"2 rank\(s\): accuracy (\S+)", text)[0] > 0.85


def test_each_program_is_short_and_has_a_row_in_the_readme_of_the_examples() -> None:
    table = (GALLERY / "README.md").read_text()
    for program in GALLERY.glob("*.py"):
        assert len(program.read_text().splitlines()) < 120 and f"`{program.name}`" in table
