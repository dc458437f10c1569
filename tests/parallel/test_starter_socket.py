"""Between starter and rank stands another program, or a rank is a starter's caller itself."""

import os
import subprocess
import sys

import jobs
import pytest

# As `conda run` does: the child gets no descriptor but the first three.
WRAPPER = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
TRAIN = """
import os, sys
rank = os.environ["PMI_RANK"]
files = [open(f"{sys.argv[1]}-{number}-{rank}", "w") for number in range(40)] if len(sys.argv) > 1 else []
numbers = [file.fileno() for file in files]
assert not files or int(os.environ["PMI_FD"]) in numbers, numbers
import sirtaki as hvd
from sirtaki.native import core
hvd.init()
core.submit(core.VERBS["barrier"], "x", []).wait()
os.write(1, f"met {hvd.rank()} of {hvd.size()}\\n".encode())
"""


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def launch(count, words):
    command = [sys.executable, "-m", "sirtaki.launch", "-np", str(count), *words]
    return subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("opens", [False, True], ids=["nothing", "files"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_wrapper_that_closes_descriptors(count, opens, train, tmp_path):
    """C89: sirtakirun gives the rank its line to the starter again. A file of the program's stays as it is."""
    data = [str(tmp_path / "data")] if opens else []
    ended = launch(count, [sys.executable, "-c", WRAPPER, train, *data])
    assert ended.returncode == 0, ended
    assert ended.stdout.count(f" of {count}\n") == count, ended
    assert all((tmp_path / name).read_text() == "" for name in os.listdir(tmp_path) if name.startswith("data"))


@pytest.mark.parametrize("opens", [False, True], ids=["nothing", "files"])
def test_a_wrapper_that_closes_descriptors_under_plain_mpiexec(opens, train, tmp_path):
    """C89: nobody has kept the line. The error names it before anything is written."""
    data = [str(tmp_path / "data")] if opens else []
    command = jobs.command(2, [sys.executable, "-c", WRAPPER, train, *data])
    ended = subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode not in (0, None), ended
    assert "RuntimeError: MPI finds the other ranks by descriptor " in ended.stderr, ended
    assert (
        f"(PMI_FD), which is {tmp_path}/data-" if opens else "(PMI_FD), which is closed in process "
    ) in ended.stderr
    assert "close_fds=False" in ended.stderr and "met" not in ended.stdout
    assert all((tmp_path / name).read_text() == "" for name in os.listdir(tmp_path) if name.startswith("data"))


OUTER = """
import os, subprocess, sys
import sirtaki as hvd
from sirtaki.native import core
hvd.init()
inner = subprocess.run(sys.argv[1:], capture_output=True, text=True)
assert inner.returncode == 0, inner
core.submit(core.VERBS["barrier"], "after", []).wait()
os.write(1, inner.stdout.encode())
"""


@pytest.mark.parametrize("inner", [1, 2, 3])
@pytest.mark.parametrize("starter", ["mpiexec", "sirtakirun"])
def test_mpiexec_inside_a_rank(inner, starter, train, tmp_path):
    """It starts a job of its own, during which and after which the outer one goes on."""
    outer = tmp_path / "outer.py"
    outer.write_text(OUTER)
    words = [sys.executable, str(outer), *jobs.command(inner, [sys.executable, train])]
    if starter == "sirtakirun":
        ended = launch(2, words)
    else:
        command, environ = jobs.command(2, words), jobs.environment()
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended
    assert ended.stdout.count(f" of {inner}\n") == 2 * inner, ended
