"""The request for a starter to start ranks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Host:
    """name: as ssh knows it; an IPv6 address without brackets. slots: how many ranks may run there, at least 1."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


@dataclass
class Request:
    """The launcher's request, from which Starter.command() makes a command line.

    program: the command of each rank. ranks: their number. hosts: with the number of ranks of each; empty for this host
    alone. placed: the same hosts under the names for the starter, if these differ. remote_script: a Python script that
    the starter calls instead of ssh; "" if the starter reaches other hosts by itself. localhost: this host's address
    for connections from other hosts, None for the starter's own choice. pass_on: variables that the starter must pass
    to other hosts. library: the MPI library of the ranks.
    """

    program: Sequence[str]
    ranks: int
    hosts: Sequence[Host] = ()
    placed: Sequence[str] = ()
    remote_script: str = ""
    localhost: str | None = None
    pass_on: Sequence[str] = ()
    nics: Sequence[str] = ()
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    binding_args: str | None = None
    mpi_args: str | None = None
    library: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def binding(self, *default: str) -> list[str]:
        return list(default) if self.binding_args is None else shlex.split(self.binding_args)

    def further(self) -> list[str]:
        return shlex.split(self.mpi_args or "")

    def host_list(self) -> str:
        """Hosts with their slots, separated by commas."""
        return ",".join(self.placed or [str(host) for host in self.hosts])

    def ssh_words(self) -> list[str]:
        words = []
        if self.ssh_port is not None:
            words += ["-p", str(self.ssh_port)]
        if self.ssh_identity_file is not None:
            words += ["-i", os.path.abspath(self.ssh_identity_file)]
        return words
