"""A wheel installs without a compiler, needs the glibc that its name says, and runs the README's line."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from launching import SECONDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_hosted_builds_cover_every_python_and_architecture() -> None:
    table = PROJECT["tool"]["cibuildwheel"]
    assert table["build"] == [f"cp3{minor}-*" for minor in (10, 11, 12, 13, 14)] + ["cp314t-*"]
    assert table["linux"]["archs"] == ["x86_64", "aarch64"]
    assert {table["linux"][f"manylinux-{each}-image"] for each in ("x86_64", "aarch64")} == {"manylinux_2_28"}
    jobs = yaml.safe_load((TOP / ".github/workflows/wheels.yml").read_text())["jobs"]
    assert jobs["wheels"]["strategy"]["matrix"]["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    link = (TOP / ".ci/wheels.py").read_text()
    assert table["linux"]["environment"]["SKBUILD_CMAKE_DEFINE"].partition("=")[2] in link


def test_another_architecture_needs_its_compiler(tmp_path: Path) -> None:
    words = (sys.executable, TOP / "dev", "wheel", "--arch", "vax", "--out", tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "wheels: --arch vax needs vax-linux-gnu-g++, which is not in PATH" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    words = ("--python", VERSION, "--no-isolation", "--no-sdist", "--out", out)
    done = subprocess.run([sys.executable, TOP / ".ci/wheels.py", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is consistent with" in done.stdout.replace("\n", " "), "auditwheel shows what the wheel needs"
    (made,) = out.glob("*.whl")
    return made


def without_compiler(folder: Path, wheel: Path) -> tuple[Path, dict[str, str]]:
    """A new virtual environment with the wheel and its dependencies, and the variables for programs in it.

    torch is the one of this Python, found behind all that is installed in the new environment.
    """
    venv.create(folder, with_pip=True)
    environ = {"PATH": str(folder / "bin"), "HOME": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environ |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", wheel], env=environ, check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "frameworks.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python, environ


@pytest.mark.long
@pytest.mark.network
def test_wheel_runs_the_line_of_the_readme_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    needs = re.search(r"manylinux_2_(\d+)_", wheel.name)
    here = int(os.confstr("CS_GNU_LIBC_VERSION").rpartition(".")[2])
    assert needs and int(needs.group(1)) <= (34 if here <= 36 else here), wheel.name  # 36: Debian 12
    names = zipfile.ZipFile(wheel).namelist()
    assert "sirtaki/include/sirtaki/c_api.h" in names and not [name for name in names if name.startswith("tests/")]
    python, environ = without_compiler(tmp_path / "venv", wheel)
    shown = subprocess.run(
        [python, "-c", "import shutil; print(shutil.which('gcc'), shutil.which('cc'))"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "None None\n"
    line = re.search(r"\.venv/bin/sirtakirun .*", (TOP / "README.md").read_text()).group(0)
    small = f"{line} --model resnet18 --image-size 32 --num-iters 1"
    words = [word.replace(".venv", str(tmp_path / "venv")) for word in small.split()]
    done = subprocess.run(words, env=environ, cwd=TOP, capture_output=True, text=True, timeout=10 * SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Total img/sec on 2 CPU(s):" in done.stdout
    where = subprocess.run(
        [python, "-c", "import sirtaki; print(sirtaki.__file__)"], env=environ, capture_output=True, text=True
    )
    assert where.stdout.startswith(str(tmp_path)), "the wheel's own package ran"
