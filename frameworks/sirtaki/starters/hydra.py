"""Hydra, the starter of MPICH and of its relatives (Intel MPI, MVAPICH)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sirtaki.host import processes
from sirtaki.starters import inherited_socket
from sirtaki.starters.starter import Starter, is_number, number

if TYPE_CHECKING:
    from sirtaki.starters.request import Request


class Hydra(Starter):
    name = "hydra"
    programs = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun")
    libraries = ("libmpi.so.12", "libmpich.so")
    word = "mpich"
    libraries_of_word = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12")

    rank_variables = ("PMI_RANK",)
    size_variables = ("PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    local_size_variables = ("MPI_LOCALNRANKS",)
    local_rank_variables = ("MPI_LOCALRANKID",)
    prefixes = (
        *("PMI_", "HYDI_", "MPI_LOCAL", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "IPATH_NO_BACKTRACE"),
        *("GPU_DEVICE_ORDINAL", "HFI_NO_BACKTRACE"),
    )
    identity = r"PMI_|HYDI_|MPI_LOCAL"
    descriptor_variable = "PMI_FD"

    def is_program(self, version: str) -> bool:
        return "HYDRA" in version

    def described(self, version: str) -> str:
        found = re.search(r"Version:\s*(\S+)", version)
        return f"HYDRA {found.group(1)}" if found else super().described(version)

    def job(self, environ: Mapping[str, str]) -> str:
        process = inherited_socket.peer(number(environ, "PMI_FD")) if is_number(environ, "PMI_FD") else None
        return f"{process}-{processes.start_time(process)}" if process else ""

    def command(self, program: str, request: Request) -> list[str]:
        command = [program, "-n", str(request.ranks)]
        if request.hosts:
            command += ["-hosts", request.host_list(), *self._reaching_hosts(request)]
        else:
            command += ["-launcher", "fork", "-rmk", "user"]  # on this host only, even inside a batch job
        return command + request.binding("-bind-to", "none") + request.further() + list(request.program)

    def _reaching_hosts(self, request: Request) -> list[str]:
        """Sets a Hydra variable if there is no option."""
        words = []
        if request.remote_script:
            # Hydra calls our script as `python -x -I -S script host command`.
            words += ["-genvnone", "-launcher", "ssh", "-launcher-exec", sys.executable]
            request.environ["HYDRA_LAUNCHER_EXTRA_ARGS"] = f"-I -S {request.remote_script}"
            if request.localhost is not None:
                words += ["-localhost", request.localhost]
        elif request.ssh_words():
            request.environ["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(request.ssh_words())
        if request.nics:
            words += ["-iface", request.nics[0]]
        return words
