"""`sirtakirun --check`: what is there, and why what is missing is missing."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import command, environment, run

from sirtaki.launch import check
from sirtaki.libraries import mpi_library

ROWS = ["Sirtaki", "Python", "torch", "tensorflow", "keras", "jax", "horovod", "MPI", "mpiexec", "srun", "mpi4py"]
ROWS += ["compiled core", "GPUs", "GPU kernels", "NCCL"]


def rows(done: "subprocess.CompletedProcess[bytes]") -> dict[str, str]:
    """The table by its first column, further lines of a row joined to it."""
    table: dict[str, str] = {}
    name = ""
    for line in done.stdout.decode().splitlines():
        if line.startswith(" "):
            table[name] += "\n" + line.strip()
        else:
            name, _, text = line.partition(":")
            table[name] = text.strip()
    return table


def package(path: Path, name: str, version: str, code: str) -> None:
    """An installed package of that name, for whoever has the path in PYTHONPATH."""
    (path / name).mkdir()
    (path / name / "__init__.py").write_text(code)
    info = path / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """As in `sirtakirun --check | head -1`. The frameworks are stand-ins, which are quickly imported."""
    for name in ("torch", "tensorflow", "keras", "jax"):
        package(tmp_path, name, "1.0", "")
    words, environ = command("--check"), environment(PYTHONPATH=f"{tmp_path}:{Path(check.__file__).parents[2]}")
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as table:
        assert table.stdout is not None and table.stderr is not None
        assert table.stdout.readline().startswith(b"Sirtaki:")
        table.stdout.close()
        assert table.stderr.read() == b""
    assert table.returncode == 128 + signal.SIGPIPE


def test_table(tmp_path: Path) -> None:
    package(tmp_path, "jax", "9.8.7", "x = 1")
    package(tmp_path, "torch", "6.5.4", "raise ImportError('libmissing.so.3: cannot open shared object file')")
    package(tmp_path, "keras", "3.2.1", "import os; os._exit(7)")
    package(tmp_path, "tensorflow", "2.1.0", "")
    done = run("--check", PYTHONPATH=f"{tmp_path}:{Path(check.__file__).parents[2]}")
    assert done.returncode == 0, done.stderr
    table = rows(done)
    assert list(table) == ROWS
    assert table["jax"] == "9.8.7"
    assert table["torch"].startswith("6.5.4 is installed, but `import torch` fails:")
    assert "ImportError: libmissing.so.3: cannot open shared object file" in table["torch"]
    assert "exit code 7 and no message" in table["keras"]
    library = mpi_library.find()
    assert library.path in table["MPI"] and library.reason in table["MPI"]
    if table["GPUs"].startswith("none usable"):
        assert "libcuda.so.1: cannot open shared object file" in table["GPU kernels"]
    assert library.mpiexec is not None and table["mpiexec"].startswith(library.mpiexec)


@pytest.mark.parametrize("flag", ["-cb", "--check-build"])
def test_other_names_of_the_flag(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sirtaki.launch import command

    monkeypatch.setattr(check, "main", lambda: 0)
    assert command.main([flag]) == 0


def test_missing_parts_have_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "_FRAMEWORKS", ("no_such_framework",))
    monkeypatch.setenv("SIRTAKI_MPI", str(tmp_path))
    assert "missing: SIRTAKI_MPI=" in check._mpi()
    assert check._package("no_such_framework") == "not installed"
    broken = tmp_path / "libmpi.so.12"
    broken.write_text("not a library")
    monkeypatch.setenv("SIRTAKI_MPI", str(broken))
    assert str(broken) in check._mpi()
    assert "invalid ELF header" in check._mpi() or "file too short" in check._mpi()
    words = check._dlopen("libno_such.so.1")
    assert "libno_such.so.1: cannot open shared object file" in words


def test_a_row_that_fails_does_not_end_the_table() -> None:
    def fail() -> str:
        raise OSError("the reason")

    assert check._result(fail) == "OSError: the reason"
    assert check._result(lambda: "one\ntwo") == "one\n" + " " * 16 + "two"


def test_python_m_sirtaki_is_sirtakirun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(check, "main", lambda: asked.append("check") or 7)
    monkeypatch.setattr(sys, "argv", ["sirtaki", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sirtaki", run_name="__main__")
    assert asked == ["check"] and ended.value.code == 7
