"""C4: the same installed build works with another TensorFlow than the one of this environment."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import sirtaki

HERE = Path(__file__).parent
# The oldest that has wheels for this Python, among those that differ in how a kernel's end is signalled.
OTHER = ("tensorflow-cpu==2.18.1", "numpy<2.2") if sys.version_info < (3, 13) else ("tensorflow-cpu==2.20.0",)
PACKAGES = ("cloudpickle", "keras", "mpi4py", "mpich", "psutil", "PyYAML", "pytest")
FILES = ("tensorflow_collectives", "tensorflow_errors", "tensorflow_graphs", "tensorflow_join", "keras_training")
CHOSEN = "2ranks and not torch and (not keras or fit or embeddings or all_optimizers)"


def other_environment(folder: Path) -> Path:
    """The Python of a new environment with the other TensorFlow and the tested versions of all else."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    lines = (HERE.parents[1] / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    wanted = [f"{name}=={pinned[name]}" if name in pinned else name for name in PACKAGES]
    command = [python, "-m", "pip", "install", "-q", *OTHER, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.network
def test_same_build_with_another_tensorflow(tmp_path):
    python = other_environment(tmp_path / "venv")
    package = tmp_path / "package"
    package.mkdir()
    (package / "sirtaki").symlink_to(Path(sirtaki.__file__).parent)
    files = [str(HERE / f"test_{name}.py") for name in FILES]
    environment = {**os.environ, "PYTHONPATH": str(package), "TF_CPP_MIN_LOG_LEVEL": "2"}
    version = "import tensorflow as tf; print(tf.__version__)"
    shown = subprocess.run([python, "-c", version], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.strip() == OTHER[0].split("==")[1]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *files],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "passed" in done.stdout
