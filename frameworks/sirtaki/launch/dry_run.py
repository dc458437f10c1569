"""`sirtakirun --dry-run`: prints the hosts and commands of the job, and starts nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sirtaki.job.protocol import spec
from sirtaki.job.remote import addresses
from sirtaki.job.remote.remote_hosts import Remote
from sirtaki.starters.request import Host, Request


def plan(request: Request, reached: Remote | None, job_spec: spec.Spec, command: Sequence[str]) -> str:
    """The text, with names of variables but never their values. reached: None if the starter reaches other hosts."""
    lines = [f"{request.ranks} rank{'s' if request.ranks > 1 else ''} of: {_joined(job_spec.command)}"]
    lines.append(f"in directory: {job_spec.cwd.decode(errors='backslashreplace')}")
    lines += _hosts(request, reached, local=not job_spec.endpoints)
    if job_spec.endpoints:
        listed = ", ".join(f"{address} port {port}" for address, port in job_spec.endpoints)
        lines.append(f"other hosts connect to: {listed}")
    lines.append(f"starter: {shlex.join(command)}")
    names = sorted(name.decode(errors="backslashreplace") for name in job_spec.environ)
    lines.append(f"environment of each rank: {' '.join(names)}")
    per_rank = [*job_spec.threads, "SIRTAKI_SIZE", spec.RESTART_VARIABLE]
    lines.append(f"set for each host or rank: {' '.join(per_rank)}")
    return "".join(f"{line}\n" for line in lines)


def _hosts(request: Request, reached: Remote | None, local: bool) -> list[str]:
    if not request.hosts and not local:
        return ["hosts: as Slurm places the ranks"]
    lines, first = [], 0
    for host in request.hosts or [Host(addresses.own_name(), request.ranks)]:
        last = first + host.slots - 1
        lines.append(f"host {host.name}: " + (f"rank {first}" if first == last else f"ranks {first}-{last}"))
        if reached is not None and host.name in reached.others():
            lines.append(f"  started by: {shlex.join(reached.shell.command(host.name))}")
        first = last + 1
    return lines


def _joined(words: Sequence[bytes]) -> str:
    return shlex.join(word.decode(errors="backslashreplace") for word in words)
