"""Which MPI library is chosen, and which mpiexec belongs to it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from launching import environment, program, run

from sirtaki import starters
from sirtaki.libraries import mpi_library

HYDRA = "HYDRA build details:\n    Version:   9.1\n"
NATIVE = ("MPI.mpich.cpython-311-x86_64-linux-gnu.so", "MPI.openmpi.cpython-311-x86_64-linux-gnu.so")


def place(*paths: Path) -> list[str]:
    """Makes a file with content of its own at each path; returns the paths as text."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path))
    return [str(path) for path in paths]


def mpiexec(path: Path, text: str) -> str:
    place(path)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return str(path)


class Site:
    """A Python environment and a system around it, both empty, that the rules are asked about."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.lib = root / "env" / "lib"
        self.system = root / "system" / "lib"
        self.packages = root / "packages"
        self.cache: dict[str, str] = {}
        self.layers: list[str] = []
        self.wheels: list[str] = []
        self.environ = {"PATH": str(root / "path")}
        monkeypatch.setattr(mpi_library.sys, "prefix", str(root / "env"))
        monkeypatch.setattr(mpi_library.site, "ENABLE_USER_SITE", False)
        monkeypatch.setattr(mpi_library, "_SYSTEM_DIRECTORIES", (str(self.system),))
        monkeypatch.setattr(mpi_library, "_loader_cache", lambda: self.cache)
        monkeypatch.setattr(mpi_library, "_openmpi_says", list)
        self.real_packages = mpi_library._package_directories
        monkeypatch.setattr(mpi_library, "_package_directories", lambda: self.layers)
        self.real_wheels = mpi_library._installed_wheels
        monkeypatch.setattr(mpi_library, "_installed_wheels", lambda: self.wheels)
        monkeypatch.setattr(mpi_library.importlib.util, "find_spec", self._find_spec)

    def _find_spec(self, name: str) -> object:
        places = [str(self.packages / name)] if (self.packages / name).is_dir() else None
        return type("Spec", (), {"submodule_search_locations": places}) if places else None

    def candidates(self, **extra: str) -> list[str]:
        return mpi_library.candidates({**self.environ, **extra})

    def find(self, **extra: str) -> mpi_library.MpiLibrary:
        return mpi_library.find({**self.environ, **extra})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_missing_library_is_an_error_with_the_places_searched(site: Site) -> None:
    assert site.candidates() == []
    with pytest.raises(mpi_library.MpiNotFoundError, match=r"pip install mpich") as caught:
        site.find()
    assert str(site.lib) in str(caught.value) and "libmpi_abi.so.1" in str(caught.value)


def test_the_standard_abi_in_this_environment_comes_first(site: Site) -> None:
    old, new = place(site.lib / "libmpi.so.12", site.lib / "libmpi_abi.so.1")
    place(site.system / "libmpi.so.40")
    site.cache["libmpi.so.40"] = str(site.system / "libmpi.so.40")
    assert site.candidates() == [new, old]
    assert str(site.lib) in site.find().reason


@pytest.mark.parametrize("modules", [NATIVE, NATIVE[:1]])
def test_mpi4py_with_native_modules_only_is_shared_with(modules: tuple[str, ...], site: Site) -> None:
    old, new = place(site.lib / "libmpi.so.12", site.lib / "libmpi_abi.so.1")
    place(*(site.packages / "mpi4py" / name for name in modules))
    assert site.candidates() == [old, new]
    assert "mpi4py" in site.find().reason


def test_mpi4py_that_knows_the_standard_abi_changes_nothing(site: Site) -> None:
    old, new = place(site.lib / "libmpi.so.12", site.lib / "libmpi_abi.so.1")
    place(*(site.packages / "mpi4py" / name for name in (*NATIVE, "MPI.mpiabi.abi3.so")))
    assert site.candidates() == [new, old]


def test_mpi4py_built_on_the_spot_names_its_library(site: Site) -> None:
    old, new = place(site.lib / "libmpi.so.12", site.lib / "libmpi_abi.so.1")
    module = site.packages / "mpi4py" / "MPI.cpython-311-x86_64-linux-gnu.so"
    place(module)
    module.write_bytes(b"\x7fELF\0libmpi.so.12\0libc.so.6\0")
    assert site.candidates() == [old, new]


def test_a_link_and_its_target_are_one(site: Site) -> None:
    place(site.lib / "libmpi_abi.so.1.0.0")
    (site.lib / "libmpi_abi.so.1").symlink_to("libmpi_abi.so.1.0.0")
    (site.lib / "libmpi_abi.so.0").symlink_to("libmpi_abi.so.1.0.0")
    assert site.candidates() == [str(site.lib / "libmpi_abi.so.1")]


def test_other_places_in_their_order(site: Site) -> None:
    (named,) = place(site.root / "named" / "libmpi.so.40")
    site.cache = {"libmpich.so.12": "/x/libmpich.so.12", "libmpi_abi.so.0": "/x/libmpi_abi.so.0"}
    assert site.candidates() == ["/x/libmpi_abi.so.0", "/x/libmpich.so.12"]
    assert site.candidates(LD_LIBRARY_PATH=f"/none::{site.root}/named") == [named]
    assert site.find(LD_LIBRARY_PATH=f"{site.root}/named").reason == "found through LD_LIBRARY_PATH"


def test_a_file_or_a_prefix_that_the_user_names(site: Site) -> None:
    place(site.lib / "libmpi_abi.so.1")
    (own,) = place(site.root / "own" / "lib64" / "libmpi.so.40")
    assert site.candidates(SIRTAKI_MPI=own) == [own]
    assert site.candidates(SIRTAKI_MPI=str(site.root / "own")) == [own]
    assert site.find(SIRTAKI_MPI=own).reason == f"SIRTAKI_MPI={own}"


@pytest.mark.parametrize(("word", "name"), [("openmpi", "libmpi.so.40"), ("mpich", "libmpich.so.12")])
def test_words_mean_the_systems_own(word: str, name: str, site: Site) -> None:
    place(site.lib / "libmpi_abi.so.1", site.lib / "libmpi.so.12", site.lib / "libmpi.so.40")
    (own,) = place(site.system / name)
    assert site.candidates(SIRTAKI_MPI=word) == [own]
    os.unlink(own)
    (cached,) = place(site.root / "cached" / name)
    site.cache[name] = cached
    assert site.candidates(SIRTAKI_MPI=word) == [cached]


def test_the_prefix_of_ompi_info_is_looked_at(site: Site) -> None:
    place(site.system / "libmpi.so.40")
    (module,) = place(site.root / "module" / "lib" / "libmpi.so.40")
    mpiexec(site.root / "module" / "bin" / "ompi_info", "")
    found = site.candidates(SIRTAKI_MPI="openmpi", PATH=str(site.root / "module" / "bin"))
    assert found[0] == module


@pytest.mark.parametrize("wish", ["/no/such/prefix", "/no/such/libmpi.so", "openmpi", "mpich", "intel"])
def test_a_setting_that_cannot_be_met_is_refused_with_its_value(wish: str, site: Site) -> None:
    place(site.lib / "libmpi_abi.so.1")
    with pytest.raises(ValueError, match=f"SIRTAKI_MPI='{wish}': no MPI library there"):
        site.candidates(SIRTAKI_MPI=wish)


def test_refusal_reaches_the_user_of_the_launcher() -> None:
    done = run("-np", "2", "true", SIRTAKI_MPI="/no/such")
    assert done.returncode == 2 and b"SIRTAKI_MPI='/no/such'" in done.stderr


def test_mpiexec_beside_the_library_comes_first(site: Site) -> None:
    place(site.lib / "libmpi_abi.so.1")
    mpiexec(site.root / "path" / "mpiexec", HYDRA)
    assert site.find().mpiexec == str(site.root / "path" / "mpiexec")
    own = mpiexec(site.lib.parent / "bin" / "mpiexec", HYDRA)
    assert site.find().mpiexec == own


def test_mpiexec_of_another_mpi_is_not_taken(site: Site) -> None:
    place(site.lib / "libmpi.so.12")
    mpiexec(site.root / "path" / "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    assert site.find().mpiexec is None
    right = mpiexec(site.root / "path" / "mpiexec.mpich", HYDRA)
    assert site.find().mpiexec == right
    (open_mpi,) = place(site.root / "o" / "lib" / "libmpi.so.40")
    assert site.find(SIRTAKI_MPI=open_mpi).mpiexec == str(site.root / "path" / "mpiexec")


def test_an_environment_below_this_one(site: Site) -> None:
    """A virtual environment that lets the packages of its base through, where the MPI is."""
    (below,) = place(site.root / "base" / "lib" / "libmpi.so.12")
    assert site.candidates() == []
    site.layers.append(str(site.root / "base" / "lib" / "python3.11" / "site-packages"))
    assert site.candidates() == [below]
    (own,) = place(site.lib / "libmpi.so.12")
    assert site.candidates() == [own, below]


def test_debians_folder_counts_if_pip_put_an_mpi_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = site.root / "local" / "lib" / "python3.11" / "dist-packages"
    packages.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(packages))
    site.wheels = site.real_wheels()
    assert str(packages) not in site.real_packages()
    (packages / "mpich-5.0.2.dist-info").mkdir()
    site.wheels = site.real_wheels()
    assert str(packages) in site.real_packages()


def test_an_mpi_that_pip_installed_without_its_library(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip --target leaves the folder lib out. The system's MPI is not taken in its place, unless it is asked for."""
    (system,) = place(site.system / "libmpi.so.40")
    site.cache["libmpi.so.40"] = system
    assert site.candidates() == [system]
    target = site.root / "target"
    (target / "mpich-5.0.2.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(target))
    site.wheels = site.real_wheels()
    with pytest.raises(mpi_library.MpiNotFoundError, match=rf"mpich-5\.0\.2 in {target}, but its library is not"):
        site.candidates()
    assert site.candidates(SIRTAKI_MPI=system) == [system]
    (own,) = place(site.lib / "libmpi.so.12")
    assert site.candidates() == [own]


def test_a_library_in_the_layer_below_a_real_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "upper", system_site_packages=True, with_pip=False)
    packages = next((tmp_path / "upper" / "lib").glob("python*")) / "site-packages"
    (packages / "layer.pth").write_text(str(tmp_path / "base" / "lib" / "python3" / "site-packages") + "\n")
    (tmp_path / "base" / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (below,) = place(tmp_path / "base" / "lib" / "libmpi_abi.so.1")
    code = "from sirtaki.libraries import mpi_library; print(*mpi_library.candidates())"
    words = [str(tmp_path / "upper" / "bin" / "python"), "-c", code]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60)
    # An installed Sirtaki is on PYTHONPATH, and the library of its own environment comes first.
    assert below in done.stdout.split(), done


def test_the_starter_of_a_library_in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """C120: /lib and /bin are links into /usr. Open MPI takes the prefix / for a mistake."""
    library = "/lib/x86_64-linux-gnu/libmpi.so.40"
    linked = {"/lib", "/bin", "/lib/x86_64-linux-gnu"}
    monkeypatch.setattr(mpi_library.os.path, "realpath", lambda path: f"/usr{path}" if path in linked else path)
    monkeypatch.setattr(mpi_library.os.path, "isfile", lambda path: path.endswith(("/bin/mpiexec.openmpi", library)))
    monkeypatch.setattr(mpi_library.os, "access", lambda path, mode: path.startswith(("/bin/", "/usr/bin/")))
    monkeypatch.setattr(mpi_library.starters, "identify", lambda path: (starters.of_library(library)[0], ""))
    assert mpi_library.find({"SIRTAKI_MPI": library, "PATH": "/bin"}).mpiexec == "/usr/bin/mpiexec.openmpi"


def test_library_without_mpiexec_is_an_error(tmp_path: Path) -> None:
    place(tmp_path / "a" / "b" / "c" / "lib" / "libmpi.so.40")
    library = str(tmp_path / "a" / "b" / "c" / "lib" / "libmpi.so.40")
    done = run("-np", "2", sys.executable, "train.py", SIRTAKI_MPI=library, PATH="/nowhere")
    assert done.returncode == 1
    assert f"no mpiexec belongs to {library}".encode() in done.stderr


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (HYDRA, "hydra", "HYDRA 9.1"),
        ("mpiexec.openmpi (OpenRTE) 4.1.4\n\nReport bugs", "openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4"),
        ("mpirun (Open MPI) 4.1.2", "openmpi", "mpirun (Open MPI) 4.1.2"),
        ("mpirun (Open MPI) 5.0.3", "prrte", "mpirun (Open MPI) 5.0.3"),
        ("prterun (PRRTE) 3.0.2", "prrte", "prterun (PRRTE) 3.0.2"),
        ("slurm 23.02.6", "slurm", "slurm 23.02.6"),
        ("something else", "unknown", "something else"),
    ],
)
def test_kinds_of_mpiexec(text: str, kind: str, words: str, tmp_path: Path) -> None:
    starter, told = starters.identify(mpiexec(tmp_path / "mpiexec", text))
    assert (starter.name if starter else "unknown", told) == (kind, words)


def test_mpiexec_that_cannot_run_is_unknown(tmp_path: Path) -> None:
    assert starters.identify(str(tmp_path / "none"))[0] is None


def test_sharing_with_mpi4py_respects_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "")  # so that it is put back afterwards
    del os.environ["MPI4PY_LIBMPI"]
    mpi_library.share_with_mpi4py("/a/libmpi.so.12")
    mpi_library.share_with_mpi4py("/b/libmpi.so.12")
    assert os.environ["MPI4PY_LIBMPI"] == "/a/libmpi.so.12"


def test_the_chosen_library_and_mpi4py_make_one_world() -> None:
    pytest.importorskip("mpi4py")
    code = (
        "from sirtaki.libraries import mpi_library\n"
        "mpi_library.share_with_mpi4py(mpi_library.candidates()[0])\n"
        "from mpi4py import MPI\n"
        "print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1))"
    )
    done = run("-np", "2", sys.executable, *program(code)[2:])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 2", b"[1] 1 2"]


def test_loading_the_module_loads_no_mpi() -> None:
    load = "from sirtaki.libraries import mpi_library; mpi_library.candidates()"
    code = f"import sys; {load}; print('mpi4py' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, timeout=60)
    assert done.stdout == b"False\n", done.stderr
