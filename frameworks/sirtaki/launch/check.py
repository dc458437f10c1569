"""`sirtakirun --check`: lists the parts found, and for each missing part the reason, in the loader's own words."""

import concurrent.futures
import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from sirtaki import starters
from sirtaki.libraries import gpu_libraries, mpi_library
from sirtaki.version import __version__

_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "intel-tensorflow")}
_IMPORT_SECONDS = 120
_INDENT = 16


def main() -> int:
    """Prints the table. Returns 0 even if parts are missing, as the table shows it."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:  # each import runs in its own process
        frameworks = {name: pool.submit(_package, name) for name in _FRAMEWORKS}
        rows: list[tuple[str, Callable[[], str]]] = [
            ("Sirtaki", lambda: f"{__version__} in {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}"),
            ("Python", lambda: f"{sys.version.split()[0]}, {sys.executable}"),
            *((name, future.result) for name, future in frameworks.items()),
            ("horovod", _horovod),
            ("MPI", _mpi),
            ("mpiexec", _mpiexec),
            ("srun", lambda: shutil.which("srun") or "not in PATH"),
            ("mpi4py", _mpi4py),
            ("compiled core", _core),
            ("GPUs", _gpus),
            ("GPU kernels", _kernels),
            ("NCCL", _nccl),
        ]
        for name, find in rows:
            print(f"{name + ':':{_INDENT}}{_result(find)}", flush=True)
    return 0


def _result(find: Callable[[], str]) -> str:
    try:
        text = find()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text.strip().replace("\n", "\n" + " " * _INDENT)


def _package(name: str) -> str:
    """The package's version, or its error message if the import (in its own process) fails."""
    version = _version(name)
    if version is None:
        if importlib.util.find_spec(name) is None:
            return "not installed"
        version = "(unknown version)"
    command = [sys.executable, "-c", f"import {name}"]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_IMPORT_SECONDS, env=environ
        )
    except subprocess.TimeoutExpired:
        return f"{version}, but importing it took more than {_IMPORT_SECONDS} s"
    if done.returncode == 0:
        return version
    words = done.stderr.decode(errors="replace").strip().splitlines()
    reason = "\n".join(words[-3:]) or f"exit code {done.returncode} and no message"
    return f"{version} is installed, but `import {name}` fails:\n{reason}"


def _version(name: str) -> str | None:
    for distribution in _DISTRIBUTIONS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _horovod() -> str:
    """Which package `import horovod` would give."""
    real, shim = _version("horovod"), _version("sirtaki-horovod")
    if real and shim:
        return (
            f"both Horovod {real} and sirtaki-horovod {shim} are installed; uninstall one (docs/moving_from_horovod.md)"
        )
    spec = importlib.util.find_spec("horovod")
    if spec is None:
        return "not installed (sirtaki-horovod gives programs for Horovod its module names)"
    return (
        f"sirtaki-horovod {shim}, {spec.origin}" if shim else f"Horovod {real or 'itself'}, not Sirtaki: {spec.origin}"
    )


def _mpi() -> str:
    try:
        library = mpi_library.find()
    except (mpi_library.MpiNotFoundError, ValueError) as error:
        return f"missing: {error}"
    try:
        from sirtaki import _core
    except ImportError:
        return f"{library.path} ({library.reason})\n{_dlopen(library.path) or 'it loads'}; no version: no compiled core"
    try:
        info = _core.mpi_info(mpi_library.candidates())
    except Exception as error:
        return f"{library.path} ({library.reason}), but it does not load:\n{error}"
    return f"{info['path']} ({library.reason})\n{' '.join(info['version'].splitlines()[0].split())}, ABI: {info['abi']}"


def _mpiexec() -> str:
    library = mpi_library.find()
    if library.mpiexec is None:
        return f"missing: no mpiexec of {library.path} is beside it or in PATH"
    starter, words = starters.identify(library.mpiexec)
    return f"{library.mpiexec} ({starter.name if starter else 'unknown'}: {words})"


def _mpi4py() -> str:
    version = _version("mpi4py")
    return version or "not installed (sirtaki.init(comm=...) with its communicators needs it)"


def _core() -> str:
    spec = importlib.util.find_spec("sirtaki._core")
    if spec is None:
        return "missing: the compiled core was not built; install Sirtaki with pip"
    try:
        from sirtaki import _core
    except ImportError as error:
        return f"{spec.origin} does not load:\n{error}"
    return str(_core.__file__)


def _gpus() -> str:
    words = _dlopen("libcuda.so.1")
    if words:
        return f"none usable: {words}"
    tool = shutil.which("nvidia-smi")
    if not tool:
        return "the CUDA driver loads; no nvidia-smi in PATH to list the GPUs"
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=60)
    return (done.stdout + done.stderr).strip() or "the CUDA driver loads; nvidia-smi lists no GPU"


def _gpu_part(name: str) -> str:
    """The part that the compiled core would use."""
    try:
        from sirtaki import _core
    except ImportError:
        return "unknown without the compiled core"
    _core.set_gpu_libraries(gpu_libraries.nccl(), gpu_libraries.nvrtc())
    return _core.gpu_info()[name]


def _nccl() -> str:
    return _gpu_part("NCCL")


def _kernels() -> str:
    return _gpu_part("kernels")


def _dlopen(name: str) -> str:
    """The loader's message, or "" if the library loads."""
    try:
        ctypes.CDLL(name, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
    except OSError as error:
        return str(error)
    return ""
