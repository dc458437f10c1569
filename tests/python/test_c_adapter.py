"""The C interface for adapters of others: its header is plain C, and the example compiles and sums on two ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import run

import sirtaki

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/c_adapter"
STRICT = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapter") / "libc_adapter.so"
    command = [os.environ.get("CC", "gcc"), *STRICT, "-shared", "-fPIC", f"-I{sirtaki.get_include()}"]
    subprocess.run([*command, EXAMPLE / "c_adapter.c", "-o", made], check=True)
    return made


def test_a_library_in_c_sums_over_two_ranks(library: Path) -> None:
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "sirtaki" not in needed.split("Dynamic section", 1)[1].split("SONAME")[0]
    done = run("-np", "2", sys.executable, str(EXAMPLE / "c_adapter.py"), str(library))
    output = done.stdout.decode()
    assert done.returncode == 0, output + done.stderr.decode()
    assert "2 ranks summed 1000 floats to 3 each\n" in output
    misfit = (
        "differ give: error 2: rank 0 sends to rank 1 with tag 5 float32 (10,) (40 bytes) at c_adapter.c, but rank 1"
    )
    assert misfit in output, output
    assert "counts that differ give: error 2: " in output and "uneven" in output, "a mismatch names the request"
