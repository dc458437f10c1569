"""The examples as a user runs them: what they print, what they learn, and that they refuse what they must."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jobs
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = "--model resnet18 --image-size 32 --batch-size 2 --num-warmup-batches 1 --num-batches-per-iter 2 --num-iters 3"
SECONDS = 300


def run(ranks: int, example: str, *arguments: str) -> jobs.Ended:
    """Runs an example on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        job = jobs.start(ranks, [sys.executable, str(EXAMPLES / example), *arguments], output)
        try:
            job.wait(SECONDS)
        finally:
            jobs.kill(job)
        return jobs.Ended(job.returncode, output.read_text(errors="replace"))


def output(done: jobs.Ended) -> str:
    assert done.code == 0, done.output
    return done.output


def test_separate_copies_report_nothing() -> None:
    command = [sys.executable, str(EXAMPLES / "synthetic_benchmark.py"), *SMALL.split()]
    environment = jobs.environment({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
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
    assert done.code != 0
    assert "--batch-size 33 cannot be divided among 2 ranks" in done.output


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
