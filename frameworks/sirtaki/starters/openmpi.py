"""Open MPI's starters: ORTE up to version 4, PRRTE since version 5."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sirtaki.starters.starter import Starter, number

if TYPE_CHECKING:
    from sirtaki.starters.request import Request

_INSIDE_A_RANK = re.compile(r"OMPI_(?!MCA_)|OMPI_MCA_(orte_|ess|pmix$|initial_wdir|shmem_RUNTIME)")


class OpenMpi(Starter):
    name = "openmpi"
    programs = ("mpiexec.openmpi", "mpirun.openmpi", "mpiexec", "mpirun", "prterun")
    libraries = ("libmpi.so.40", "libmpi.so.80")
    word = "openmpi"
    libraries_of_word = libraries

    rank_variables = ("PMIX_RANK", "OMPI_COMM_WORLD_RANK")
    size_variables = ("OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
    local_size_variables = ("OMPI_COMM_WORLD_LOCAL_SIZE",)
    local_rank_variables = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    prefixes = ("PMIX_", "OMPI_", "PRTE_", "ORTE_")
    identity = r"OMPI_COMM_WORLD_|PMIX_(?!MCA_)"

    _runtime_flag = "--mca"
    _ssh = "plm_rsh"
    _oversubscribe: tuple[str, ...] = ("--oversubscribe",)

    def is_program(self, version: str) -> bool:
        found = re.search(r"\)\s*v?(\d+)\.", version)
        is_new = found is not None and int(found.group(1)) >= 5
        return ("Open MPI" in version or "OpenRTE" in version) and not is_new

    def job(self, environ: Mapping[str, str]) -> str:
        return environ.get("PMIX_NAMESPACE", "")

    def is_stranger_to(self, version: Callable[[], str], environ: Mapping[str, str]) -> bool:
        """False for MPICH with PMIx (its version text says so), and inside an Open MPI rank that has started Hydra."""
        if number(environ, "OMPI_COMM_WORLD_SIZE") < 2 or "PMI_RANK" in environ:
            return False
        words = version()
        return "Open MPI" not in words and "pmix" not in words.lower()

    def is_identity(self, name: str, environ: Mapping[str, str]) -> bool:
        inside = "OMPI_COMM_WORLD_RANK" in environ
        return super().is_identity(name, environ) or (inside and _INSIDE_A_RANK.match(name) is not None)

    def command(self, program: str, request: Request) -> list[str]:
        command = [program, "-np", str(request.ranks)]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += self._oversubscribe
        if request.hosts:
            command += ["--host", request.host_list(), *self._reaching_hosts(request)]
        else:
            command += ["--host", f"localhost:{request.ranks}"]  # on this host only, even inside a batch job
        for name in request.pass_on:
            command += ["-x", name]
        return command + request.binding("--bind-to", "none") + request.further() + list(request.program)

    def _reaching_hosts(self, request: Request) -> list[str]:
        flag, words = self._runtime_flag, []
        if request.remote_script:
            words += [flag, f"{self._ssh}_agent", f"{sys.executable} -I -S {request.remote_script}"]
            words += [flag, f"{self._ssh}_no_tree_spawn", "1"]  # this host connects to every other host
        elif request.ssh_words():
            words += [flag, f"{self._ssh}_args", shlex.join(request.ssh_words())]
        if request.nics:
            words += ["--mca", "btl_tcp_if_include", ",".join(request.nics)]
            words += [flag, "oob_tcp_if_include", ",".join(request.nics)]
        return words


class OpenMpi5(OpenMpi):
    name = "prrte"
    word = ""

    _runtime_flag = "--prtemca"
    _ssh = "plm_ssh"
    _oversubscribe = ("--map-by", "slot:OVERSUBSCRIBE")

    def is_program(self, version: str) -> bool:
        if "Open MPI" in version or "OpenRTE" in version:
            return not super().is_program(version)
        return any(word in version for word in ("PRTE", "PRRTE", "prte"))
