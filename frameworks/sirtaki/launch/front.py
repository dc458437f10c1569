"""The command line for the MPI in use: Hydra, Open MPI, or Slurm's srun."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sirtaki.launch.hosts import Host, filled
from sirtaki.launch.remote import Remote

# Who this process is in a job around it; a new job must not inherit it.
_IDENTITY = re.compile(
    r"PMI_|HYDI_|MPI_LOCAL|OMPI_COMM_WORLD_|PMIX_(?!MCA_)|SIRTAKI_LAUNCH_SPEC|SIRTAKI_SUPERVISOR$|SIRTAKI_SIZE$"
)
_OPENMPI_JOB = re.compile(r"OMPI_(?!MCA_)|OMPI_MCA_(orte_|ess|pmix$|initial_wdir|shmem_RUNTIME)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Request:
    """What to start. hosts: empty for this host alone. remote: how other hosts are reached, None if that is left to
    mpiexec. pass_on: variables that other hosts must get through it."""

    program: Sequence[str]
    ranks: int
    hosts: Sequence[Host] = ()
    remote: Remote | None = None
    pass_on: Sequence[str] = ()
    nics: Sequence[str] = ()
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    binding_args: str | None = None
    mpi_args: str | None = None
    environ: dict[str, str] = field(default_factory=dict)

    def binding(self, *default: str) -> list[str]:
        return list(default) if self.binding_args is None else shlex.split(self.binding_args)

    def further(self) -> list[str]:
        return shlex.split(self.mpi_args or "")

    def placed(self) -> list[str]:
        return self.remote.placed() if self.remote is not None else [str(host) for host in self.hosts]

    def ssh_words(self) -> list[str]:
        words = []
        if self.ssh_port is not None:
            words += ["-p", str(self.ssh_port)]
        if self.ssh_identity_file is not None:
            words += ["-i", os.path.abspath(self.ssh_identity_file)]
        return words


def without_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what tells who this process is in a job that it may be part of."""
    nested = "OMPI_COMM_WORLD_RANK" in environ
    return {
        name: value
        for name, value in environ.items()
        if not _IDENTITY.match(name) and not (nested and _OPENMPI_JOB.match(name))
    }


def for_mpiexec(environ: Mapping[str, str]) -> dict[str, str]:
    """What mpiexec itself gets: only plain entries, as it may copy them through texts of its own. The rest travels
    with the spec."""
    return {n: v for n, v in environ.items() if _PLAIN_NAME.fullmatch(n) and "\n" not in v}


def hydra(mpiexec: str, request: Request) -> list[str]:
    """MPICH and its relatives. Sets variables of Hydra in `request.environ` where it has no option."""
    command = [mpiexec, "-n", str(request.ranks)]
    if request.hosts:
        command += ["-hosts", ",".join(request.placed())]
        if request.remote is not None:
            # Ours is started as `python -x -I -S script host command`.
            command += ["-genvnone", "-launcher", "ssh", "-launcher-exec", sys.executable]
            request.environ["HYDRA_LAUNCHER_EXTRA_ARGS"] = f"-I -S {request.remote.script()}"
            if request.remote.localhost is not None:
                command += ["-localhost", request.remote.localhost]
        elif request.ssh_words():
            request.environ["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(request.ssh_words())
        if request.nics:
            command += ["-iface", request.nics[0]]
    else:
        command += ["-launcher", "fork", "-rmk", "user"]  # also inside a batch job: here, and nowhere else
    return command + request.binding("-bind-to", "none") + request.further() + list(request.program)


def openmpi(mpiexec: str, request: Request, newer: bool) -> list[str]:
    """Open MPI; `newer`: 5 and later, where PRRTE starts the ranks."""
    command = [mpiexec, "-np", str(request.ranks)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    command += ["--map-by", "slot:OVERSUBSCRIBE"] if newer else ["--oversubscribe"]
    if request.hosts:
        command += ["--host", ",".join(request.placed())]
        if request.remote is not None:
            agent, prefix = ("plm_ssh_agent", "plm_ssh") if newer else ("plm_rsh_agent", "plm_rsh")
            flag = "--prtemca" if newer else "--mca"
            command += [flag, agent, f"{sys.executable} -I -S {request.remote.script()}"]
            command += [flag, f"{prefix}_no_tree_spawn", "1"]  # every host is reached from here
        elif request.ssh_words():
            command += ["--prtemca" if newer else "--mca", "plm_ssh_args" if newer else "plm_rsh_args"]
            command.append(shlex.join(request.ssh_words()))
        if request.nics:
            command += ["--mca", "btl_tcp_if_include", ",".join(request.nics)]
            command += ["--prtemca" if newer else "--mca", "oob_tcp_if_include", ",".join(request.nics)]
    else:
        # Also inside a batch job: here, and nowhere else.
        command += ["--host", f"localhost:{request.ranks}"]
    for name in request.pass_on:
        command += ["-x", name]
    return command + request.binding("--bind-to", "none") + request.further() + list(request.program)


def srun(program: str, request: Request, pmi: str | None) -> list[str]:
    """Slurm. pmi: the plugin that tells MPI its ranks, None for the site's default."""
    command = [program, "-n", str(request.ranks), "--export=ALL", "--kill-on-bad-exit=1", "--unbuffered"]
    command += ["--input=none"] + ([f"--mpi={pmi}"] if pmi else [])
    if request.hosts:
        command += ["-N", str(len(request.hosts)), "-w", ",".join(host.name for host in request.hosts)]
        command += ["--ntasks-per-node", str(max(host.slots for host in filled(request.hosts, request.ranks)))]
    return command + request.binding("--cpu-bind=none") + request.further() + list(request.program)


def srun_pmi(program: str, library: str) -> str | None:
    """The plugin of this srun that a library of this name can talk to."""
    name = os.path.basename(os.path.realpath(library))
    wanted = ("pmix",) if re.match(r"libmpi\.so\.[48]0", name) else ("pmi2", "cray_shasta", "pmix")
    try:
        done = subprocess.run([program, "--mpi=list"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    offered = re.findall(r"[\w.]+", done.stdout + done.stderr)
    return next((plugin for plugin in wanted if plugin in offered), None)
