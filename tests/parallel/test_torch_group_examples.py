"""The examples of torch.distributed over Sirtaki, as a user runs them."""

import re
from pathlib import Path

import pytest
from example_runs import output, outputs_of_one_job, run


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example prints, and the checkpoint's folder."""
    checkpoint = tmp_path_factory.mktemp("examples") / "checkpoint"
    lines = {
        "ddp": "torch_ddp.py",
        "mesh": "torch_mesh.py --steps=20",
        "pipeline": "torch_pipeline.py",
        "fsdp": f"torch_fsdp.py --save {checkpoint} --steps=30",
        "benchmark": "torch_group_benchmark.py --rounds=1 --width=16",
    }
    texts = outputs_of_one_job(2, list(lines.values()))
    return {**dict(zip(lines, texts, strict=True)), "checkpoint": str(checkpoint)}


def test_ddp_learns_the_digits(of_two_ranks: dict[str, str]) -> None:
    text = of_two_ranks["ddp"]
    accuracy = re.search(r"^Test accuracy on 2 rank\(s\): (\d\.\d{4})$", text, re.MULTILINE)
    assert accuracy and float(accuracy.group(1)) > 0.93, text


@pytest.mark.parametrize("ranks", [(2, 1), pytest.param((4, 2), marks=pytest.mark.long)])
def test_fsdp_goes_on_from_a_checkpoint_of_more_ranks(
    ranks: tuple[int, int], tmp_path: Path, of_two_ranks: dict[str, str]
) -> None:
    if ranks[0] == 2:
        checkpoint, saved_by = of_two_ranks["checkpoint"], of_two_ranks["fsdp"]
    else:
        checkpoint = str(tmp_path / "checkpoint")
        saved_by = output(run(ranks[0], "torch_fsdp.py", "--save", checkpoint, "--steps=30"))
    loaded_by = output(run(ranks[1], "torch_fsdp.py", "--load", checkpoint, "--steps=10"))
    losses = []
    for count, text in zip(ranks, (saved_by, loaded_by), strict=True):
        found = re.search(
            rf"^Loss on {count} rank\(s\): (\d\.\d{{4}}) before, (\d\.\d{{4}}) after$", text, re.MULTILINE
        )
        assert found, text
        losses.append([float(loss) for loss in found.groups()])
    (before, saved), (loaded, after) = losses
    assert saved < before / 3 and loaded == pytest.approx(saved, abs=2e-4) and after < loaded


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_mesh_learns_as_one_process(ranks: int, of_two_ranks: dict[str, str]) -> None:
    text = of_two_ranks["mesh"] if ranks == 2 else output(run(ranks, "torch_mesh.py", "--steps=20"))
    found = re.search(r"^Loss on \d x 2 ranks: (\d\.\d+), in one process: (\d\.\d+)$", text, re.MULTILINE)
    assert found and float(found.group(1)) == pytest.approx(float(found.group(2)), abs=2e-9), text


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_pipeline_learns_as_one_process(ranks: int, of_two_ranks: dict[str, str]) -> None:
    text = of_two_ranks["pipeline"] if ranks == 2 else output(run(ranks, "torch_pipeline.py"))
    before, after = map(float, re.findall(r"(\d\.\d+) (?:before|after)", text))
    assert after < before / 2, text
    assert float(re.findall(r"^Largest difference from one process: (\S+)$", text, re.MULTILINE)[0]) < 1e-12, text


def test_benchmark(of_two_ranks: dict[str, str]) -> None:
    text = of_two_ranks["benchmark"]
    for what in ("allreduce 1 KiB", "allreduce 64 KiB", "allreduce 25 MiB", "DDP step", "FSDP2 step"):
        ways = [
            name for name in ("gloo", "sirtaki", "hvd") if re.search(rf"^{what} +{name} +\d+\.\d us least", text, re.M)
        ]
        assert ways == (["gloo", "sirtaki", "hvd"] if "allreduce" in what else ["gloo", "sirtaki"]), text
