"""Slurm's srun, which itself starts the ranks on the hosts of an allocation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sirtaki.starters import slurm_hosts
from sirtaki.starters.openmpi import OpenMpi
from sirtaki.starters.starter import Starter, number

if TYPE_CHECKING:
    from sirtaki.starters.request import Request


class Srun(Starter):
    name = "slurm"
    called = "srun"
    places_ranks = True
    programs = ("srun",)

    rank_variables = ("SLURM_PROCID",)
    local_rank_variables = ("SLURM_LOCALID",)
    prefixes = ("SLURM_",)
    advice = (
        "srun has started the processes without a plugin by which it finds the others. Start with srun --mpi=pmi2 "
        "for MPICH or --mpi=pmix for Open MPI (srun --mpi=list shows what there is), or with sirtakirun."
    )

    def is_program(self, version: str) -> bool:
        return version.lower().startswith("slurm")

    def rank(self, environ: Mapping[str, str]) -> int | None:
        return super().rank(environ) if self.size(environ)[1] else None

    def size(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Slurm sets its variables in batch scripts too, where this process is alone; only a step's tasks count."""
        if "SLURM_PROCID" not in environ:
            return "", 0
        if "SLURM_STEP_NUM_TASKS" in environ:
            return "SLURM_STEP_NUM_TASKS", number(environ, "SLURM_STEP_NUM_TASKS")
        in_step = "SLURM_STEP_ID" in environ or "SLURM_JOB_ID" not in environ
        if in_step or number(environ, "SLURM_PROCID") > 0:
            return "SLURM_NTASKS", number(environ, "SLURM_NTASKS")
        return "", 0

    def local_size(self, environ: Mapping[str, str]) -> int:
        counts = _counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = environ.get("SLURM_NODEID", "")
        return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 0

    def is_in_allocation(self, environ: Mapping[str, str]) -> bool:
        return "SLURM_JOB_ID" in environ

    def allocated_hosts(self, environ: Mapping[str, str]) -> list[str]:
        return slurm_hosts.hosts(environ)

    def command(self, program: str, request: Request) -> list[str]:
        pmi = _plugin(program, request.library)
        command = [program, "-n", str(request.ranks), "--export=ALL", "--kill-on-bad-exit=1", "--unbuffered"]
        command += ["--input=none"] + ([f"--mpi={pmi}"] if pmi else [])
        if request.hosts:
            command += ["-N", str(len(request.hosts)), "-w", ",".join(host.name for host in request.hosts)]
            command += ["--ntasks-per-node", str(max(host.slots for host in request.hosts))]
        return command + request.binding("--cpu-bind=none") + request.further() + list(request.program)


def _plugin(program: str, library: str) -> str | None:
    """The plugin by which this srun starts ranks of this library; None for the site's default."""
    import subprocess

    wanted = ("pmix",) if OpenMpi().owns_library(library) else ("pmi2", "cray_shasta", "pmix")
    try:
        done = subprocess.run([program, "--mpi=list"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    offered = re.findall(r"[\w.]+", done.stdout + done.stderr)
    return next((plugin for plugin in wanted if plugin in offered), None)


def _counts(text: str) -> list[int]:
    """Tasks of each node: "2(x3),1" means 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        number, _, times = part.rstrip(")").partition("(x")
        if number.isdigit():
            counts += [int(number)] * (int(times) if times.isdigit() else 1)
    return counts
