"""The parts of the examples that one process can test: models, arguments, statistics, the interface for frameworks."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES.parent / "benchmarks")]

import byte_sizes  # noqa: E402
import collective_arguments  # noqa: E402
import collective_report  # noqa: E402
import encoder  # noqa: E402
import resnet  # noqa: E402
import synthetic_benchmark  # noqa: E402
import synthetic_report  # noqa: E402
import synthetic_world  # noqa: E402
import vgg  # noqa: E402


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


def test_models_that_weigh_on_the_wire() -> None:
    with torch.device("meta"):
        for model, inputs, parameters, tensors, classes in (
            (vgg.Vgg16(), torch.zeros(2, 3, 224, 224), 138_357_544, 32, 1000),
            (encoder.Encoder(), torch.zeros(2, 128, dtype=torch.long), 364_848_954, 291, encoder.TOKENS),
        ):
            shapes = [parameter.shape for parameter in model.parameters()]
            assert (sum(shape.numel() for shape in shapes), len(shapes)) == (parameters, tensors)
            assert model(inputs).shape == (2, classes)
        names = [name for name, _ in vgg.Vgg16().named_parameters()]
        assert names[:3] == ["features.0.weight", "features.0.bias", "features.2.weight"]
        assert names[-4:-2] == ["classifier.3.weight", "classifier.3.bias"]


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
        ("--model bert-large --channels-last", "--channels-last is for images"),
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


def test_byte_sizes() -> None:
    texts = ("64", "1KiB", "1k", "16MiB", "2M")
    assert [byte_sizes.parse(text) for text in texts] == [64, 1024, 1024, 16 << 20, 2 << 20]
    assert [byte_sizes.show(size) for size in (64, 1024, 64 << 20)] == ["64 B", "1 KiB", "64 MiB"]
    with pytest.raises(Exception, match="multiple of 4 bytes, got 6"):
        byte_sizes.parse("6")


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


def test_sizes_of_the_collective_benchmark() -> None:
    defaults = collective_arguments.parse("", [])
    assert (defaults.sizes[0], defaults.sizes[-1], defaults.gradients) == (64, 256 << 20, True)
    assert (defaults.json, defaults.plot, defaults.verbs) == (None, None, [])
    verbs = collective_arguments.parse("", ["--verb", "all"])
    assert (verbs.sizes, verbs.gradients) == ([1 << 10, 64 << 10, 1 << 20, 32 << 20], False)
    assert verbs.verbs == ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "send"]
    assert collective_arguments.parse("", ["--sizes", "1k", "64", "1KiB"]).sizes == [64, 1024]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--rounds 0", "--rounds: must be a whole number of at least 1, got '0'"),
        ("--rounds 2.5", "--rounds: must be a whole number of at least 1, got '2.5'"),
        ("--sizes 64 huge", "--sizes: must be bytes such as 64, 4KiB or 16MiB, got 'huge'"),
        ("--sizes 6", "--sizes: must be a positive multiple of 4 bytes, got 6"),
        ("--json /no/such/folder/x.json", "a folder that exists, got '/no/such/folder/x.json'"),
        ("--plot x.jpg", "--plot: must end in .png, got 'x.jpg'"),
        ("--plot x.png --sizes", "--plot x.png has nothing to draw"),
        ("--plot x.png --verb alltoall", "draws the comparison of allreduce, which --verb alltoall leaves out"),
        ("--verb gather", "--verb: invalid choice: 'gather'"),
    ],
)
def test_collective_benchmark_refuses(line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collective_arguments.parse("", line.split())
    assert complaint in capsys.readouterr().err


def test_plot_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        collective_arguments.parse("", ["--plot", "x.png"])
    complaint = capsys.readouterr().err
    assert "'x.png'" in complaint and "matplotlib is not installed" in complaint and "sirtaki[bench]" in complaint


def test_an_operation_lasts_from_the_last_arrival() -> None:
    assert collective_report.duration([(1.0, 9.0), (5.0, 8.0)], one_clock=True) == 4
    assert collective_report.duration([(1.0, 9.0), (105.0, 108.0)], one_clock=False) == 8


def test_figures_compare_to_the_better_mpi() -> None:
    ways = collective_report.summarise(
        {"MPI in place": [4.0, 5.0, 9.0], "MPI out of place": [2.0], "gloo": [3.0]}, 300, 3
    )
    assert (ways["MPI"]["way"], ways["MPI"]["median"]) == ("MPI out of place", 2)
    assert ways["MPI in place"]["median"] == 5 and ways["MPI in place"]["p95"] == pytest.approx(8.6)
    assert {name: figures["to_mpi"] for name, figures in ways.items()} == {
        "MPI": 1,
        "MPI in place": 2.5,
        "MPI out of place": 1,
        "gloo": 1.5,
    }
    assert ways["gloo"]["bus_mb_s"] == pytest.approx(2 * 2 / 3 * 300 / 3.0 / 1e6)
    assert collective_report.peers(ways) == ["MPI", "gloo"]


def test_performance_plot_draws_the_table(tmp_path: Path) -> None:
    import performance_plot

    rows = performance_plot.read_table((EXAMPLES.parent / "docs/performance.md").read_text())
    assert rows[0][0] == 64 and rows[-1][0] == 64 << 20 and all(own < mpi for _, mpi, own in rows)
    performance_plot.draw(rows, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no table"):
        performance_plot.read_table("")
