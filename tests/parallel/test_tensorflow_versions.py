"""C4: the same installed build works with another TensorFlow than the one of this environment."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from ranks import run_tests

import sirtaki

HERE = Path(__file__).parent
# The oldest that has wheels for this Python, among those that differ in how a kernel's end is signalled.
OTHER = ("tensorflow-cpu==2.18.1", "numpy<2.2") if sys.version_info < (3, 13) else ("tensorflow-cpu==2.20.0",)
FILES = ("tensorflow_collectives", "tensorflow_errors", "tensorflow_graphs", "tensorflow_join", "keras_training")
CHOSEN = "2ranks and not torch and (not keras or fit or embeddings or all_optimizers)"


def install(folder: Path) -> None:
    """The other TensorFlow with what it needs, to come before this environment's own on the path."""
    wanted = [*OTHER, f"keras=={metadata.version('keras')}"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", folder, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.network
@pytest.mark.long
def test_same_build_with_another_tensorflow(tmp_path):
    install(tmp_path / "tensorflow")
    package = tmp_path / "package"
    package.mkdir()
    (package / "sirtaki").symlink_to(Path(sirtaki.__file__).parent)
    path = os.pathsep.join([str(package), str(tmp_path / "tensorflow"), str(HERE)])
    settings = {"PYTHONPATH": path, "KERAS_BACKEND": "tensorflow"}
    where = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('tensorflow').origin)"]
    found = subprocess.run(where, capture_output=True, text=True, env={**os.environ, **settings}, check=True).stdout
    assert found.startswith(str(tmp_path)), found
    files = [str(HERE / f"test_{name}.py") for name in FILES]
    code, output = run_tests(2, ["-k", CHOSEN, *files], HERE.parents[1], settings)
    assert code == 0 and output.count(" passed") == 2, output[-6000:]
