"""The examples as a user runs them: what they print, what they learn, and that they refuse what they must."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
import torch
from example_runs import EXAMPLES, output, outputs_of_one_job, run

sys.path.insert(0, str(EXAMPLES))

import byte_sizes

SMALL = "--model resnet18 --image-size 32 --batch-size 2 --num-warmup-batches 1 --num-batches-per-iter 2 --num-iters 3"


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str, Path]:
    """What three examples print in one job, and the file of the second."""
    file = tmp_path_factory.mktemp("examples") / "result.json"
    threads = len(os.sched_getaffinity(0))
    lines = (
        "torch_digits.py",
        f"synthetic_benchmark.py {SMALL} --fp16-allreduce --threads={threads} --json={file}",
        f"synthetic_benchmark.py {SMALL} --compare ddp --dtype bfloat16 --channels-last",
    )
    digits, benchmark, comparison = outputs_of_one_job(2, lines)
    return digits, benchmark, comparison, file


def test_separate_copies_report_nothing() -> None:
    command = [sys.executable, str(EXAMPLES / "synthetic_benchmark.py"), *SMALL.split()]
    environment = jobs.environment({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
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


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)])
def test_synthetic_benchmark(ranks: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    threads = len(os.sched_getaffinity(0))  # with two ranks or more, more threads than cores
    if ranks == 2:
        _, text, _, file = request.getfixturevalue("of_two_ranks")
    else:
        file = tmp_path / "result.json"
        flags = (f"--threads={threads}", f"--json={file}")
        text = output(run(ranks, "synthetic_benchmark.py", *SMALL.split(), *flags))
    check_lines(text, ranks)
    assert f"gradients travel as {'float16' if ranks == 2 else 'float32'}\n" in text
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


@pytest.mark.long
@pytest.mark.parametrize("flag", ["--bf16-allreduce", "--use-adasum"])
def test_synthetic_benchmark_variants(flag: str) -> None:
    text = output(run(2, "synthetic_benchmark.py", *SMALL.split(), flag))
    check_lines(text, 2)
    expected = {"--bf16-allreduce": "bfloat16"}.get(flag, "float32")
    assert f"gradients travel as {expected}\n" in text


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_compare_prints_ratios(ranks: int, request: pytest.FixtureRequest) -> None:
    """On two ranks also beside DDP, in bfloat16."""
    if ranks == 2:
        text = request.getfixturevalue("of_two_ranks")[2]
    else:
        text = output(run(ranks, "synthetic_benchmark.py", *SMALL.split(), "--compare"))
    check_lines(text, ranks)
    table = dict(re.findall(r"^(\w.*?)  +\d+\.\d  +(\d+\.\d{3})  +\d+\.\d{3}  +\d+\.\d\d ms$", text, re.MULTILINE))
    ways = ["Sirtaki", "no communication", "coupled", "DDP", "tuned DDP"]
    assert list(table) == (ways if ranks == 2 else []), text
    assert ranks == 1 or table["no communication"] == "1.000"
    assert re.search(r"^With Sirtaki to without, in the same run: \d\.\d{3}$", text, re.MULTILINE)
    efficiency = re.search(r"^Efficiency against one process \(\d+\.\d img/sec\): \d\.\d{3}$", text, re.MULTILINE)
    assert bool(efficiency) == (ranks > 1)


def test_digits_are_learned_on_two_ranks(of_two_ranks: tuple[str, str, str, Path]) -> None:
    text = of_two_ranks[0]
    accuracy = re.search(r"^Test accuracy on 2 rank\(s\): (\d\.\d{4})$", text, re.MULTILINE)
    assert accuracy and float(accuracy.group(1)) > 0.95, text


@pytest.mark.long
def test_digits_are_learned_in_two_lives(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sirtaki.launch", "-np", "2", "--restarts", "1", sys.executable]
    example = [str(EXAMPLES / "restart_digits.py"), "--kill-at", "60", "--folder", str(tmp_path)]
    done = subprocess.run([*words, *example], env=jobs.environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lives = re.findall(r"Life (\d) begins at step (\d+) on 2 rank", done.stdout)
    assert lives == [("0", "0"), ("1", "50")], done.stdout
    assert "restart 1 of 1 in 1 s: rank 1 failed (killed by signal 9, SIGKILL" in done.stderr
    accuracy = re.search(r"Test accuracy: (\d\.\d{4})$", done.stdout, re.MULTILINE)
    assert accuracy and float(accuracy.group(1)) > 0.95, done.stdout


@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        pytest.param("tensorflow", [2, 1], marks=pytest.mark.long),
        pytest.param("torch", [2, 1], marks=pytest.mark.long),
    ],
)
def test_keras_digits(backend: str, sizes: list[int]) -> None:
    """Learned on two ranks, with the losses of one process on the joined batches.

    In float64, since a difference of rounding grows from step to step: in float32 it was seen to reach some per cent
    within three epochs.
    """
    curves = []
    for ranks in sizes:
        text = output(run(ranks, "keras_digits.py", "--epochs=6", "--dtype=float64", extra={"KERAS_BACKEND": backend}))
        curves.append([float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)])
        accuracy = re.search(rf"^Test accuracy on {ranks} rank\(s\): (\d\.\d{{4}})$", text, re.MULTILINE)
        assert accuracy and float(accuracy.group(1)) > 0.95, text
    assert all(len(curve) == 6 and curve[5] < curve[0] / 4 for curve in curves)
    assert curves[-1][:4] == pytest.approx(curves[0][:4], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("framework", ["tensorflow", "keras"])
def test_synthetic_benchmark_of_tensorflow(framework: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    flags = (f"--framework={framework}", "--compare", f"--json={file}")
    extra = {"KERAS_BACKEND": "tensorflow"}
    text = output(run(2, "synthetic_benchmark.py", *SMALL.split(), *flags, extra=extra))
    check_lines(text, 2)
    assert re.search(r"^With Sirtaki to without, in the same run: \d\.\d{3}$", text, re.MULTILINE)
    facts = json.loads(file.read_text())
    assert facts["framework"] == framework and facts["size"] == 2
    assert facts["versions"]["tensorflow"] and facts["versions"]["keras"]


@pytest.mark.long
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


PEERS = {"MPI", "MPI in place", "MPI out of place", "gloo", "Sirtaki", "copy"}
GRADIENTS = {"gloo, asynchronous", "Sirtaki, asynchronous", "Sirtaki, grouped", "copy, one by one", "MPI"}
TINY = ("collective_benchmark.py", "--rounds=1", "--no-gradients", "--sizes", "64")
HOROVOD = """
import sirtaki.torch

def allreduce_(tensor, name, op):
    {allreduce}

def __getattr__(name):
    return getattr(sirtaki.torch, name)
"""


def check_figures(ways: dict, nbytes: int) -> None:
    """On two ranks, whose bus bandwidth is the number of bytes over the time."""
    mpi = [figures["median"] for name, figures in ways.items() if name.startswith("MPI ")]
    assert ways["MPI"]["median"] == min(mpi) and ways["MPI"]["to_mpi"] == 1
    assert ways["MPI"]["median"] == ways[ways["MPI"]["way"]]["median"]
    for figures in ways.values():
        assert 0 < figures["p5"] <= figures["p10"] <= figures["median"] <= figures["p90"] <= figures["p95"]
        assert figures["to_mpi"] == pytest.approx(figures["median"] / min(mpi))
        assert figures["bus_mb_s"] == pytest.approx(nbytes / figures["median"] / 1e6)
        assert figures["samples"] == 2


@pytest.mark.long
def test_collective_benchmark(tmp_path: Path) -> None:
    file, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    sizes = ("--sizes", "1MiB", "64", "1KiB", "64")
    text = output(run(2, "collective_benchmark.py", "--rounds=1", f"--json={file}", f"--plot={picture}", *sizes))
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    result = json.loads(file.read_text())
    assert result["schema"] == 1
    facts, rows, gradients = result["facts"], result["allreduce"], result["gradients"]
    installed = importlib.util.find_spec("horovod") is not None
    assert ("Horovod is not installed, so it takes no part\n" in text) == (not installed)
    assert [row["bytes"] for row in rows] == [64, 1024, 1 << 20]
    for row in rows:
        assert set(row["ways"]) - {"Horovod"} == PEERS and ("Horovod" in row["ways"]) == (
            "horovod" in facts["versions"]
        )
        check_figures(row["ways"], row["bytes"])
        assert re.search(
            rf"^ +{re.escape(byte_sizes.show(row['bytes']))} .*  MPI (in|out of) place$", text, re.MULTILINE
        )
    assert (gradients["tensors"], gradients["elements"]) == (161, 25_557_032)
    assert set(gradients["ways"]) > GRADIENTS | {f"{name}, one flat buffer" for name in PEERS - {"MPI"}}
    check_figures(gradients["ways"], 4 * 25_557_032)
    assert all(name in text for name in gradients["ways"])
    assert text.count("Ranks: 2 on ") == 1 and facts["size"] == 2 == sum(facts["hosts"].values())
    assert facts["versions"]["torch"] == torch.__version__
    assert (facts["data_plane"], facts["control"]) == ("shared memory", "shared memory")
    assert "Sirtaki's data plane: shared memory; control: shared memory\n" in text


def with_horovod(folder: Path, allreduce: str) -> jobs.Ended:
    """Two ranks that find a `horovod` of the same interface in `folder`."""
    package = folder / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (package / "torch.py").write_text(HOROVOD.format(allreduce=allreduce))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run(2, *TINY, f"--json={folder / 'figures.json'}", extra={"PYTHONPATH": path})


def test_collective_benchmark_of_every_verb(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    text = output(run(2, "collective_benchmark.py", "--rounds=1", "--verb=all", f"--json={file}", "--sizes", "1KiB"))
    rows = json.loads(file.read_text())["verbs"]
    verbs = ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "send"]
    assert [(row["verb"], row["calls"]) for row in rows] == [(verb, calls) for verb in verbs for calls in (1, 100)]
    for row in rows:
        assert {"MPI", "Sirtaki"} <= set(row["ways"]) and all(each["median"] > 0 for each in row["ways"].values())
        assert re.search(
            rf"^\S* ?{row['verb']} +1 KiB +{row['calls']} .* MPI (blocking|started|one by one)$", text, re.M
        )


@pytest.mark.long
def test_collective_benchmark_takes_an_installed_horovod_along(tmp_path: Path) -> None:
    text = output(with_horovod(tmp_path, "return sirtaki.torch.allreduce_(tensor, name=name, op=op)"))
    result = json.loads((tmp_path / "figures.json").read_text())
    assert "horovod 1.2.3" in text and "takes no part" not in text
    assert set(result["allreduce"][0]["ways"]) == PEERS | {"Horovod"}
    assert result["gradients"] is None


def test_collective_benchmark_reports_no_wrong_sums(tmp_path: Path) -> None:
    done = with_horovod(tmp_path, "return tensor.add_(1)")
    assert done.code not in (0, None)
    assert re.search(r"RuntimeError: Horovod gave \d+\.0 where \d+\.0 was due", done.output)
    assert "/MPI" not in done.output and not (tmp_path / "figures.json").exists()


@pytest.mark.long
def test_collective_benchmark_warns_of_shared_cores() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        text = output(run(2, *TINY))
    finally:
        os.sched_setaffinity(0, cores)
    assert "Warning: 2 ranks share 1 core(s) of " in text


def test_collective_benchmark_refuses_once() -> None:
    done = run(2, "collective_benchmark.py", "--rounds=-7")
    assert done.code != 0
    assert done.output.count("argument --rounds: must be a whole number of at least 1, got '-7'") == 1
