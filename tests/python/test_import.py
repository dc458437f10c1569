"""What importing costs and needs, and what is said when a part is missing; nothing is started here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sirtaki

PACKAGE = Path(sirtaki.__file__).parent


def _no_launcher() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "SLURM_"))}


def run(source: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    extra = {"PYTHONPATH": str(path)} if path else {}
    return subprocess.run(
        [sys.executable, "-c", source],
        env={**_no_launcher(), **extra, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def copy_of_package(folder: Path) -> Path:
    copy = folder / "sirtaki"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "_core*"))
    return copy


def test_import_loads_no_framework():
    source = (
        "import sys, sirtaki\n"
        "assert not {'torch', 'tensorflow', 'numpy', 'mpi4py', 'sirtaki._core'} & set(sys.modules)\n"
        "assert set(dir(sirtaki)) >= {'init', 'rank', 'missing', '__version__'}; assert not sirtaki.is_initialized();"
        "assert sirtaki.missing() == {}, sirtaki.missing()"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr


def test_the_package_has_the_functions_of_every_adapter():
    from sirtaki import runtime

    assert set(runtime.__all__) <= set(sirtaki.__all__)
    assert all(getattr(sirtaki, name) is getattr(runtime, name) for name in runtime.__all__)


def test_without_the_compiled_core(tmp_path):
    copy_of_package(tmp_path)
    source = (
        "import sirtaki; print(sirtaki.missing()); assert not sirtaki.is_initialized()\n"
        "try:\n    sirtaki.init()\nexcept ImportError as error:\n    print('refused:', error)"
    )
    ended = run(source, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "not installed" in ended.stdout and "refused:" in ended.stdout and str(tmp_path) in ended.stdout


def test_a_core_that_does_not_load_is_named_with_the_loaders_words(tmp_path):
    """C3"""
    copy = copy_of_package(tmp_path)
    import importlib.machinery

    broken = copy / f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"not a library at all")
    ended = run("import sirtaki; print(sirtaki.missing()['core'])", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert str(broken) in ended.stdout and "does not load" in ended.stdout
    assert "invalid ELF header" in ended.stdout or "too short" in ended.stdout, ended.stdout


def test_an_mpi_that_does_not_load(tmp_path):
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(b"nothing")
    ended = run("import sirtaki; print(sirtaki.missing())\nsirtaki.init()", SIRTAKI_MPI=str(library))
    assert ended.returncode != 0
    assert str(library) in ended.stdout and "MPI" in ended.stdout
    assert str(library) in ended.stderr


def test_a_process_alone():
    source = (
        "import sirtaki; from sirtaki.libraries import gpu_libraries; sirtaki.init(); sirtaki.init()\n"
        "print(sirtaki.rank(), sirtaki.size(), sirtaki.is_homogeneous(), end=' ')\n"
        "print(sirtaki.mpi_enabled(), sirtaki.gloo_enabled(), sirtaki.nccl_built() == gpu_libraries.nccl_version())\n"
        "sirtaki.shutdown(); sirtaki.shutdown(); print(sirtaki.is_initialized())"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["0", "1", "True", "True", "False", "True", "False"]


def test_keras_2_that_is_missing_is_named():
    source = "import sys; sys.modules['tf_keras'] = None; import sirtaki.keras"
    done = run(source, TF_USE_LEGACY_KERAS="1", KERAS_BACKEND="tensorflow")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: TF_USE_LEGACY_KERAS is set, which asks for Keras 2, but tf_keras cannot"), said
    assert "import of tf_keras halted" in said
