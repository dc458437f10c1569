"""The examples of torch.distributed over Sirtaki, as a user runs them."""

import re
import sys
import tempfile
from pathlib import Path

import jobs
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(ranks: int, example: str, *arguments: str) -> str:
    """What an example prints on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        job = jobs.start(ranks, [sys.executable, str(EXAMPLES / example), *arguments], output)
        try:
            job.wait(300)
        finally:
            jobs.kill(job)
        text = output.read_text(errors="replace")
    assert job.returncode == 0, text
    return text


def test_ddp_learns_the_digits() -> None:
    text = run(2, "torch_ddp.py")
    accuracy = re.search(r"^Test accuracy on 2 rank\(s\): (\d\.\d{4})$", text, re.MULTILINE)
    assert accuracy and float(accuracy.group(1)) > 0.93, text


@pytest.mark.parametrize("ranks", [(2, 1), pytest.param((4, 2), marks=pytest.mark.long)])
def test_fsdp_goes_on_from_a_checkpoint_of_more_ranks(ranks: tuple[int, int], tmp_path: Path) -> None:
    losses = []
    for count, way, steps in ((ranks[0], "--save", 30), (ranks[1], "--load", 10)):
        text = run(count, "torch_fsdp.py", way, str(tmp_path / "checkpoint"), f"--steps={steps}")
        found = re.search(
            rf"^Loss on {count} rank\(s\): (\d\.\d{{4}}) before, (\d\.\d{{4}}) after$", text, re.MULTILINE
        )
        assert found, text
        losses.append([float(loss) for loss in found.groups()])
    (before, saved), (loaded, after) = losses
    assert saved < before / 3 and loaded == pytest.approx(saved, abs=2e-4) and after < loaded


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_mesh_learns_as_one_process(ranks: int) -> None:
    text = run(ranks, "torch_mesh.py", "--steps=20")
    found = re.search(r"^Loss on \d x 2 ranks: (\d\.\d+), in one process: (\d\.\d+)$", text, re.MULTILINE)
    assert found and float(found.group(1)) == pytest.approx(float(found.group(2)), abs=2e-9), text


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_pipeline_learns_as_one_process(ranks: int) -> None:
    text = run(ranks, "torch_pipeline.py")
    before, after = map(float, re.findall(r"(\d\.\d+) (?:before|after)", text))
    assert after < before / 2, text
    assert float(re.findall(r"^Largest difference from one process: (\S+)$", text, re.MULTILINE)[0]) < 1e-12, text


def test_benchmark() -> None:
    text = run(2, "torch_group_benchmark.py", "--rounds=1", "--width=16")
    for what in ("allreduce 1 KiB", "allreduce 64 KiB", "allreduce 25 MiB", "DDP step", "FSDP2 step"):
        ways = [
            name for name in ("gloo", "sirtaki", "hvd") if re.search(rf"^{what} +{name} +\d+\.\d us least", text, re.M)
        ]
        assert ways == (["gloo", "sirtaki", "hvd"] if "allreduce" in what else ["gloo", "sirtaki"]), text
