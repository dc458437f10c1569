"""The package: no framework, CUDA or MPI at build time, one place for each fact, and tested versions for everything."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import sirtaki
from sirtaki.native import core

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
ABSENT = ("torch", "tensorflow", "keras", "jax")


def requirements(*groups: str) -> list[Requirement]:
    """What the package needs at run time, with these extras."""
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *(text for group in groups for text in extras[group])]
    return [one for one in map(Requirement, texts) if one.marker is None or one.marker.evaluate()]


def compiled_module(pattern: str) -> Path:
    (file,) = Path(sirtaki.__file__).parent.glob(pattern)
    return file


def test_build_needs_no_framework_and_no_mpi() -> None:
    names = {Requirement(text).name for text in PROJECT["build-system"]["requires"]}
    assert names == {"scikit-build-core", "pybind11"}


def test_cmake_looks_for_no_framework_and_no_mpi() -> None:
    files = (TOP / "CMakeLists.txt", *TOP.glob("cmake/*.cmake"))
    text = "\n".join(re.sub(r"#.*", "", file.read_text()) for file in files)
    assert set(re.findall(r"find_package\((\w+)", text)) <= {"Threads", "Python", "pybind11", "doctest"}
    assert not re.search(r"(?<!/)\b(torch|tensorflow|cuda|nccl|mpicc|execute_process)\b", text, re.IGNORECASE)


@pytest.mark.parametrize("pattern", ["_core.*.so", "_tensorflow_ops.so"])
def test_compiled_modules_are_linked_to_the_system_alone(pattern: str) -> None:
    file = str(compiled_module(pattern))
    dump = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dump)
    assert needed
    system = r"(libstdc\+\+|libm|libgcc_s|libc|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+"
    assert [name for name in needed if not re.fullmatch(system, name)] == []


def test_everything_but_the_adapters_works_without_a_framework() -> None:
    program = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None  # an import of it raises ImportError
import sirtaki, sirtaki.launch.command
assert sirtaki.missing() == {{}}, sirtaki.missing()
sirtaki.init()
print(sirtaki.rank(), sirtaki.size(), sirtaki.__version__)
sirtaki.shutdown()
try:
    import sirtaki.torch
except ImportError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"0 1 {sirtaki.__version__}"
    assert second in ("ImportError", "ModuleNotFoundError")


def test_import_loads_no_framework() -> None:
    program = f"import sirtaki, sys; print([name for name in {ABSENT} + ('mpi4py', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_type_checkers_of_users_find_the_annotations() -> None:
    package = Path(sirtaki.__file__).parent
    assert [name for name in ("py.typed", "_core.pyi") if not (package / name).is_file()] == []


def test_stub_describes_all_of_the_core() -> None:
    tree = ast.parse((TOP / "frameworks/sirtaki/_core.pyi").read_text())
    aliases = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    described = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    described |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert described == {name for name in dir(core) if not name.startswith("_")} - aliases
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)} - {"__buffer__"}
            assert [name for name in methods if not hasattr(getattr(core, node.name), name)] == []


def test_version_stands_in_one_place() -> None:
    version = PROJECT["project"]["version"]
    assert sirtaki.__version__ in (version, "0+source")  # the latter: this tree, never installed
    rooms = ("frameworks/**/*.py", "collectives/**/*.[ch]*", "bindings/**/*.[ch]*", "CMakeLists.txt")
    again = [file for room in rooms for file in TOP.glob(room) if file.is_file() and f'"{version}"' in file.read_text()]
    assert again == []


def test_script_exists() -> None:
    module, _, function = PROJECT["project"]["scripts"]["sirtakirun"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("extra", ["torch", "bench", "wheel", "test"])
def test_constraints_hold_a_tested_version_of_every_requirement(extra: str) -> None:
    lines = [line for line in (TOP / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "a constraint is name==version"
    pinned = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    for one in requirements(extra):
        name = one.name.lower().replace("_", "-")
        assert name in pinned, f"{name} is not in constraints.txt"
        assert one.specifier.contains(pinned[name]), f"{one} excludes the tested {pinned[name]}"


def test_extras() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == {
        "torch",
        "tensorflow",
        "bench",
        "docs",
        "timeline",
        "wheel",
        "test",
    }
    assert {one.name for one in requirements()} == {"cloudpickle", "mpi4py", "mpich", "numpy", "psutil", "PyYAML"}


def test_hosted_ci_covers_python_and_torch_from_the_oldest_on() -> None:
    jobs = yaml.safe_load((TOP / ".github/workflows/ci.yml").read_text())["jobs"]
    versions = jobs["versions"]["strategy"]["matrix"]["include"]
    assert [one["python"] for one in versions] == ["3.10", "3.11", "3.12", "3.13"]
    assert sorted({one["torch"] for one in versions}, key=float) == ["2.13", "2.4", "2.8"]
    assert (
        PROJECT["project"]["requires-python"] == ">=3.10"
        and "torch>=2.4" in PROJECT["project"]["optional-dependencies"]["torch"]
    )
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "./dev ${{ matrix.kind }}" in commands and 'eval "$(.ci/run --show)"' in commands
    hooks = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"], "a hook that has to be downloaded has another version"


def test_licence_is_apache() -> None:
    text = (TOP / "LICENSE").read_text()
    assert "Apache License\n" in text and "Version 2.0, January 2004" in text and len(text) > 11_000
