"""`sirtaki-horovod`: programs for Horovod run unchanged, and a real Horovod is never replaced."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import FRAMEWORKS, SECONDS, environment

TOP = Path(__file__).resolve().parents[2]
SHIM = TOP / "frameworks/horovod_shim"
PROGRAMS = Path(__file__).parent / "horovod_programs"
TRAINED = ("Accuracy on 2 ranks", "ranks have the same weights")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the package, with no network."""
    folder = tmp_path_factory.mktemp("shim")
    source, target = folder / "source", folder / "target"
    shutil.copytree(SHIM, source, ignore=shutil.ignore_patterns("__pycache__"))
    flags = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *flags, "--target", target, source], check=True)
    return target


def paths(*folders: Path) -> str:
    return os.pathsep.join(map(str, folders))


def python(code: str, *folders: Path) -> "subprocess.CompletedProcess[str]":
    environ = environment() | {"PYTHONPATH": paths(*folders, FRAMEWORKS)}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=SECONDS)


def horovodrun(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command that pip installed, with a Python that finds both packages."""
    environ = environment(TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1") | {"PYTHONPATH": paths(installed, FRAMEWORKS)}
    command = [sys.executable, str(installed / "bin/horovodrun"), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * SECONDS)


def real_horovod(folder: Path, version: str = "0.28.1") -> Path:
    """What pip leaves of a real Horovod, as far as it matters here."""
    for package in ("horovod", "horovod/common"):
        (folder / package).mkdir(parents=True, exist_ok=True)
        (folder / package / "__init__.py").write_text("")
    (folder / "horovod/common/basics.py").touch()
    if version:
        information = folder / f"horovod-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: horovod\nVersion: {version}\n")
    return folder


def test_a_classifier_for_horovod_trains_on_two_ranks(installed: Path) -> None:
    done = horovodrun(installed, "-np", "2", "-H", "localhost:2", sys.executable, str(PROGRAMS / "torch_classifier.py"))
    assert done.returncode == 0, done.stderr
    assert "Accuracy on 2 ranks: 0.9" in done.stdout or "Accuracy on 2 ranks: 1.0" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "torch_speed.py --fp16-allreduce",
        "torch_speed.py --use-adasum",
        "tensorflow_speed.py",
        "keras_fit.py horovod.keras",
        "keras_fit.py horovod.tensorflow.keras",
    ],
)
def test_programs_for_horovod_train_on_two_ranks(installed: Path, words: str) -> None:
    name, *arguments = words.split()
    done = horovodrun(installed, "-np", "2", sys.executable, str(PROGRAMS / name), *arguments)
    assert done.returncode == 0, done.stderr
    assert any(line in done.stdout for line in TRAINED), done.stdout


@pytest.mark.long
def test_horovod_run_returns_the_results_of_all_ranks(installed: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "torch_classifier.py"), "--num-proc=2", "--communication=mpi"]
    environ = environment() | {"PYTHONPATH": paths(installed, FRAMEWORKS)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr
    assert "horovod.run: 2 equal results: True\n" in done.stdout


def test_horovodrun_takes_options_of_horovod_and_refuses_others_by_name(installed: Path) -> None:
    known = ("--fusion-threshold-mb", "32", "--cycle-time-ms", "5", "--no-autotune", "--log-level", "info", "--mpi")
    done = horovodrun(installed, "-np", "2", *known, "--dry-run", sys.executable, "-c", "pass")
    assert done.returncode == 0, done.stderr
    assert " SIRTAKI_FUSION_THRESHOLD " in done.stdout
    for words in (("--gloo", "--jsrun"), ("--torus-allreduce",), ("--no-such-option",)):
        refused = horovodrun(installed, "-np", "2", *words, sys.executable, "-c", "pass")
        assert refused.returncode == 2 and all(word in refused.stderr for word in words if word.startswith("--"))


def test_modules_that_it_lacks_are_not_there() -> None:
    code = "import importlib.util, horovod; print([importlib.util.find_spec('horovod.' + n) for n in ('spark', 'ray')])"
    assert python(code, SHIM).stdout == "[None, None]\n"
    done = python("import horovod.torch.mpi_ops.ops", SHIM)  # would load Sirtaki's modules a second time
    assert "ModuleNotFoundError" in done.stderr
    done = python("from horovod.common import nonsense", SHIM)
    assert "cannot import name 'nonsense' from 'horovod.common'" in done.stderr


@pytest.mark.parametrize("version", ["0.28.1", ""])
def test_never_takes_the_place_of_a_real_horovod(tmp_path: Path, version: str) -> None:
    other = real_horovod(tmp_path / "real", version)
    done = python("import horovod", SHIM, other)
    assert "pip uninstall sirtaki-horovod" in done.stderr and str(other) in done.stderr
    assert done.returncode == 1 and done.stderr.count("ImportError: Horovod") == 1
    done = python("import horovod; print(horovod.__file__)", other, SHIM)
    assert done.stdout == f"{other}/horovod/__init__.py\n", "a real Horovod that comes first is left alone"


@pytest.mark.parametrize("last", ["horovod", "sirtaki-horovod"])
def test_both_in_one_folder(installed: Path, tmp_path: Path, last: str) -> None:
    folder = shutil.copytree(installed, tmp_path / "both")
    real_horovod(folder)
    if last == "sirtaki-horovod":
        shutil.copytree(installed, folder, dirs_exist_ok=True)
    done = python("import horovod", folder)
    assert ("is installed, and so is sirtaki-horovod" in done.stderr) == (last == "sirtaki-horovod"), done.stderr
    assert done.returncode == (last == "sirtaki-horovod")
    row = python("from sirtaki.launch import check; print(check._horovod())", folder).stdout
    assert row.startswith("both Horovod 0.28.1 and sirtaki-horovod"), row


def test_versions_agree() -> None:
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    own, shim = (tomllib.loads((at / "pyproject.toml").read_text())["project"] for at in (TOP, SHIM))
    assert shim["version"] == own["version"] and shim["dependencies"] == [f"sirtaki=={own['version']}"]
