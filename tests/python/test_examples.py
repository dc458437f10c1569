"""The examples: what they compute, what they print, and that they refuse what they must."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sirtaki import mpi_library

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import collective_benchmark  # noqa: E402
import resnet  # noqa: E402
import synthetic_benchmark  # noqa: E402
import synthetic_report  # noqa: E402
import synthetic_world  # noqa: E402

SMALL = "--model resnet18 --image-size 32 --batch-size 2 --num-warmup-batches 1 --num-batches-per-iter 2 --num-iters 3"


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what a launcher above pytest may have set."""
    foreign = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "HYDI_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**own, "OMP_NUM_THREADS": "1", **extra}


def run(ranks: int, example: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs an example on so many ranks; the output comes as text."""
    launch = [mpi_library.find().mpiexec, "-n", str(ranks)] if ranks else []
    command = [*launch, sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(command, env=environment(**extra), capture_output=True, text=True, timeout=300)


def output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("resnet18", 11_689_512, 62),
        ("resnet34", 21_797_672, 110),
        ("resnet50", 25_557_032, 161),
        ("resnet101", 44_549_160, 314),
        ("resnet152", 60_192_808, 467),
    ],
)
def test_resnets_have_the_published_sizes(name: str, parameters: int, tensors: int) -> None:
    with torch.device("meta"):
        shapes = [parameter.shape for parameter in resnet.make(name).parameters()]
    assert sum(shape.numel() for shape in shapes) == parameters
    assert len(shapes) == tensors


def test_resnet_names_and_output() -> None:
    model = resnet.make("resnet50")
    names = [name for name, _ in model.named_parameters()]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert "layer3.0.downsample.1.bias" in names
    assert names[-3:] == ["layer4.2.bn3.bias", "fc.weight", "fc.bias"]
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 1000)
    with pytest.raises(ValueError, match=r"resnet51.*resnet50"):
        resnet.make("resnet51")


def test_defaults_are_those_of_horovod() -> None:
    arguments = synthetic_benchmark.parse([])
    assert (arguments.model, arguments.batch_size, arguments.num_warmup_batches) == ("resnet50", 32, 10)
    assert (arguments.num_batches_per_iter, arguments.num_iters) == (10, 10)
    assert not any((arguments.fp16_allreduce, arguments.no_cuda, arguments.use_adasum))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--batch-size 0", "must be at least 1, got 0"),
        ("--num-iters -3", "must be at least 1, got -3"),
        ("--framework caffe", "invalid choice: 'caffe'"),
        ("--fp16-allreduce --bf16-allreduce", "exclude each other"),
        ("--no-sirtaki --compare", "--compare needs Sirtaki"),
    ],
)
def test_bad_arguments_are_refused(line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        synthetic_benchmark.parse(line.split())
    assert complaint in capsys.readouterr().err


def test_statistics() -> None:
    assert synthetic_report.mean_and_confidence([10.0, 14.0]) == {"mean": 12.0, "confidence": pytest.approx(3.92)}
    iterations = [synthetic_benchmark.Iteration(8, 2.0, 0.5), synthetic_benchmark.Iteration(8, 2.0, 0.1)]
    assert synthetic_report.shares(iterations) == pytest.approx(
        {"img_sec": 4.0, "compute_share": 0.85, "wait_share": 0.15}
    )


def test_sizes_of_the_collective_benchmark() -> None:
    texts = ("64", "1KiB", "1k", "16MiB", "2M")
    assert [collective_benchmark.size_in_bytes(text) for text in texts] == [64, 1024, 1024, 16 << 20, 2 << 20]
    assert [collective_benchmark.human(size) for size in (64, 1024, 64 << 20)] == ["64 B", "1 KiB", "64 MiB"]
    with pytest.raises(Exception, match="multiple of 4 bytes, got 6"):
        collective_benchmark.size_in_bytes("6")


def fake_benchmark(arguments: object) -> SimpleNamespace:
    """The least that a framework gives to synthetic_benchmark.py; its steps wait for a hundredth of a second."""
    return SimpleNamespace(
        hvd=None,
        device="CPU",
        threads=3,
        versions={"fake": "1.2"},
        dtype="float32",
        wire_dtype="float32",
        trainer=lambda distributed: lambda: 0.01,
        finish=lambda: None,
    )


def test_any_framework_plugs_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "benchmark_torch", SimpleNamespace(Benchmark=fake_benchmark))
    for name in synthetic_world.RANKS:
        monkeypatch.delenv(name, raising=False)
    synthetic_benchmark.main(["--no-sirtaki", "--num-iters", "2", "--batch-size", "4"])
    text = capsys.readouterr().out
    assert "Versions: fake 1.2, python" in text
    assert len(re.findall(r"^Iter #\d: [\d.]+ img/sec per CPU$", text, re.MULTILINE)) == 2
    monkeypatch.setenv("PMI_RANK", "1")  # started as one of several: only the first speaks
    synthetic_benchmark.main(["--no-sirtaki", "--num-iters", "2"])
    assert capsys.readouterr().out == ""


def test_no_figure_when_more_ranks_were_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    synthetic_world.check_size(4)
    with pytest.raises(SystemExit, match=r"PMI_SIZE announces 4 ranks, but an allreduce of ones counts 2"):
        synthetic_world.check_size(2)


def test_separate_copies_report_nothing() -> None:
    done = run(0, "synthetic_benchmark.py", *SMALL.split(), OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    assert done.returncode != 0
    assert "img/sec" not in done.stdout
    assert "OMPI_COMM_WORLD_SIZE" in done.stderr and "2" in done.stderr


def check_lines(text: str, ranks: int) -> None:
    """The lines that Horovod's benchmarks print, in their order."""
    lines = text.splitlines()
    patterns = [
        rf"World: {ranks} rank\(s\), counted by an allreduce of ones, on .+ \({ranks}\)",
        r"Model: resnet18",
        r"Batch size: 2",
        rf"Number of CPUs: {ranks}",
        r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.",
        *(rf"Iter #{index}: \d+\.\d img/sec per CPU" for index in range(3)),
        r"Img/sec per CPU: \d+\.\d \+-\d+\.\d",
        rf"Total img/sec on {ranks} CPU\(s\): \d+\.\d \+-\d+\.\d",
        *(rf"Rank {rank} on .+: \d+ thread\(s\) on \d+ core\(s\), .*waiting .+" for rank in range(ranks)),
    ]
    places = [next((i for i, line in enumerate(lines) if re.fullmatch(pattern, line)), -1) for pattern in patterns]
    assert -1 not in places and places == sorted(places), f"{patterns} are at {places} of:\n{text}"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_synthetic_benchmark(ranks: int, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    threads = len(os.sched_getaffinity(0))  # with two ranks or more, more threads than cores
    text = output(run(ranks, "synthetic_benchmark.py", *SMALL.split(), f"--threads={threads}", f"--json={file}"))
    check_lines(text, ranks)
    assert (f"{ranks} rank(s) with {ranks * threads} threads in all share {threads} core(s)" in text) == (ranks > 1)
    facts = json.loads(file.read_text())
    assert facts["size"] == ranks == sum(facts["hosts"].values()) == len(facts["ranks"])
    assert [rank["rank"] for rank in facts["ranks"]] == list(range(ranks))
    assert all(rank["threads"] == threads for rank in facts["ranks"])
    for rank in facts["ranks"]:
        assert rank["compute_share"] + rank["wait_share"] == pytest.approx(1)
        assert 0 <= rank["wait_share"] < 1
    totals = [sum(speeds) for speeds in facts["iterations_img_sec"]]
    assert len(totals) == 3 and facts["img_sec_total"]["mean"] == pytest.approx(sum(totals) / 3)
    assert facts["img_sec_each"]["mean"] * ranks == pytest.approx(facts["img_sec_total"]["mean"])
    assert facts["communication"]["path"] and facts["communication"]["version"]
    assert facts["versions"]["torch"] == torch.__version__
    assert ("exchange_seconds" in facts) == (ranks > 1)


@pytest.mark.parametrize("flag", ["--fp16-allreduce", "--bf16-allreduce", "--use-adasum"])
def test_synthetic_benchmark_variants(flag: str) -> None:
    text = output(run(2, "synthetic_benchmark.py", *SMALL.split(), flag))
    check_lines(text, 2)
    expected = {"--fp16-allreduce": "float16", "--bf16-allreduce": "bfloat16"}.get(flag, "float32")
    assert f"gradients travel as {expected}\n" in text


@pytest.mark.parametrize("ranks", [1, 2])
def test_compare_prints_ratios(ranks: int) -> None:
    text = output(run(ranks, "synthetic_benchmark.py", *SMALL.split(), "--compare"))
    check_lines(text, ranks)
    assert re.search(r"^With Sirtaki to without, in the same run: \d\.\d{3}$", text, re.MULTILINE)
    efficiency = re.search(r"^Efficiency against one process \(\d+\.\d img/sec\): \d\.\d{3}$", text, re.MULTILINE)
    assert bool(efficiency) == (ranks > 1)


def test_digits_are_learned_on_two_ranks() -> None:
    text = output(run(2, "torch_digits.py"))
    accuracy = re.search(r"^Test accuracy on 2 rank\(s\): (\d\.\d{4})$", text, re.MULTILINE)
    assert accuracy and float(accuracy.group(1)) > 0.95, text


def test_losses_do_not_depend_on_the_number_of_ranks() -> None:
    curves = []
    for ranks in (1, 2, 4):
        text = output(run(ranks, "torch_digits.py", "--float64", "--epochs=3"))
        curves.append([float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)])
    assert len(curves[0]) == 3 and curves[0][2] < curves[0][0] / 2
    assert curves[1] == pytest.approx(curves[0], abs=2e-6)
    assert curves[2] == pytest.approx(curves[0], abs=2e-6)


def test_digits_refuse_what_cannot_be_divided() -> None:
    done = run(2, "torch_digits.py", "--batch-size=33")
    assert done.returncode != 0
    assert "--batch-size 33 cannot be divided among 2 ranks" in done.stderr


def test_collective_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    text = output(run(2, "collective_benchmark.py", "--rounds=3", f"--json={file}", "--sizes", "64", "1KiB", "1MiB"))
    for title in ("Sirtaki/MPI", "gloo/Sirtaki", "MPI, one by one", "gloo, asynchronous", "Sirtaki, asynchronous"):
        assert title in text
    facts = json.loads(file.read_text())
    assert list(facts["seconds_by_bytes"]) == ["64", "1024", str(1 << 20)]
    for row in facts["seconds_by_bytes"].values():
        assert set(row) == {"mpi", "gloo", "sirtaki"} and all(seconds > 0 for seconds in row.values())
    assert len(facts["gradients_seconds"]) == 7 and all(seconds > 0 for seconds in facts["gradients_seconds"].values())
