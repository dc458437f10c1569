"""Starts a job once, or, after a failure, again: each life has a directory, a secret and connections of its own."""

import copy
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from sirtaki import starters
from sirtaki.host import open_files
from sirtaki.job.elastic.job import ElasticJob, ElasticStart
from sirtaki.job.elastic.plan import Plan
from sirtaki.job.launcher import status
from sirtaki.job.launcher.job import Job, Limits
from sirtaki.job.launcher.mpiexec import Mpiexec
from sirtaki.job.launcher.own_start import OwnStart
from sirtaki.job.launcher.screen import Screen
from sirtaki.job.protocol import private_directory, spec
from sirtaki.job.remote import addresses, remote_hosts
from sirtaki.job.supervisor import start_worker
from sirtaki.launch import dry_run, failure_folder, metrics, restarts, running_jobs
from sirtaki.launch.command_line import options
from sirtaki.starters.request import Host, Request

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WRONG_USE = (2, 126, 127)  # exit codes, as Python and shells use them
_CONNECT_SECONDS = 10  # for ssh to one host; less if the start timeout is shorter


@dataclass
class JobStart:
    """What is the same in each life of a job. chosen: the options. origin: what each worker needs. where: the hosts;
    empty if all ranks run here. plan: of an elastic job, otherwise None. starter, program, library: which starter
    starts the ranks, its program, and the MPI of the ranks.
    """

    chosen: Namespace
    origin: spec.Spec
    screen: Screen
    where: list[Host]
    plan: Plan | None
    starter: starters.Starter
    program: str
    library: str

    def live(self, number: int) -> restarts.Life:
        """Starts the job, and runs it to its end. number: of the restart."""
        job_spec = copy.deepcopy(self.origin)
        job_spec.restart = number
        if self.plan is not None:
            job_spec.environ |= {b"SIRTAKI_ELASTIC": b"1", b"HOROVOD_ELASTIC": b"1"}
        with ExitStack() as stack:
            request, reached = self._request(), None
            directory = stack.enter_context(private_directory.make()) if self._has_directory() else ""
            if directory and not self._is_local():
                reached = _remote(self.chosen, self.where, directory, self._limits())
            listeners = self._prepare(request, reached, job_spec, directory)
            for listener in listeners:
                stack.enter_context(listener)
            command = self.starter.command(self.program, request)
            if self.chosen.dry_run:
                print(dry_run.plan(request, reached, job_spec, command), end="")
                return restarts.Life(0)
            self._provide_files()
            if self.chosen.verbose:
                self.screen.note(shlex.join(command))
            job = self._job(request, reached, listeners, job_spec)
            asked = stack.enter_context(status.listen())
            job.status.serve(asked)
            name = running_jobs.name_of(asked)
            serving = metrics.serving(name, self.chosen.metrics_port, self.chosen.metrics_file)
            code = job.run(command, request.environ, stack.enter_context(serving))
        return restarts.Life(code, job.failure(code), _why_final(code, number, job))

    def _is_local(self) -> bool:
        return not self.where and not self.starter.places_ranks

    def _has_directory(self) -> bool:
        """Whether this process itself reaches all ranks, or their hosts."""
        if self._is_local():
            return True
        places = bool(self.where) and not self.starter.places_ranks
        return places and not remote_hosts.is_left_to_mpiexec(self.chosen.mpi_args)

    def _limits(self) -> Limits:
        return Limits(
            start=options.start_timeout(self.chosen), grace=self.origin.grace, lost_after=self.origin.lost_after
        )

    def _provide_files(self) -> None:
        """Open files for the ranks here, and for connections to the others."""
        own = sum(host.slots for host in self.where if addresses.is_own(host.name))
        here = self.origin.size if self._is_local() else own
        open_files.provide(here, self.origin.size - here)

    def _job(
        self, request: Request, reached: remote_hosts.Remote | None, listeners: list[socket.socket], job_spec: spec.Spec
    ) -> Job:
        ranks = job_spec.size
        details: dict[str, Any] = {
            "starter": self.starter,
            "limits": self._limits(),
            "verbose": self.chosen.verbose,
            "title": status.title(self.chosen.command, ranks, job_spec.restart),
            "records": failure_folder.of_life(job_spec.environ, job_spec.restart),
        }
        arguments = ranks, listeners, job_spec.token, self.screen
        if self.plan is not None:
            start = partial(ElasticStart, request=request, reached=reached, at_once=False)
            return ElasticJob(*arguments, plan=self.plan, reached=reached, start=start, **details)
        own = self.starter is starters.OWN
        details["start"] = partial(OwnStart, request=request, reached=reached) if own else Mpiexec
        details["arrivals"] = remote_hosts.Arrivals(reached) if reached is not None else None
        return Job(*arguments, **details)

    def _request(self) -> Request:
        return Request(
            program=[sys.executable, "-I", "-S", os.path.abspath(start_worker.__file__)],
            ranks=self.origin.size,
            hosts=self.where,
            nics=self.chosen.nics or (),
            ssh_port=self.chosen.ssh_port,
            ssh_identity_file=self.chosen.ssh_identity_file,
            binding_args=self.chosen.binding_args,
            mpi_args=self.chosen.mpi_args,
            library=self.library,
            environ=_plain(starters.without_identity(os.environ)),
        )

    def _prepare(
        self, request: Request, reached: remote_hosts.Remote | None, job_spec: spec.Spec, directory: str
    ) -> list[socket.socket]:
        """Stores the spec where the workers look for it. Returns the sockets that they connect to.

        reached: the other hosts, None if there are none or the starter reaches them. directory: the job's private one,
        "" if no rank runs on this host or another program starts the ranks of other hosts.
        """
        own = self.starter is starters.OWN
        if own:
            for name in (b"SIRTAKI_CONTROL", b"HOROVOD_CONTROL"):
                job_spec.environ.pop(name, None)  # not for a job that a rank starts
            job_spec.token = secrets.token_bytes(32)
            job_spec.address = "127.0.0.1"
        if directory and reached is None:
            request.program = [*request.program, os.path.join(directory, "spec")]
            return [private_directory.listen(job_spec, directory)]
        request.program = [*request.program, spec.BY_ENVIRONMENT]
        others = [host.name for host in request.hosts] or starters.allocated_hosts()
        grows = self.plan is not None and self.plan.may_grow()
        if grows and all(addresses.is_own(name) for name in others):
            others = []  # hosts that are not known yet
        job_spec.token = job_spec.token or secrets.token_bytes(32)
        listeners = _listen(job_spec, addresses.toward(others, request.nics))
        if reached is None:
            request.pass_on = spec.write_to_environment(job_spec, request.environ)
            return listeners
        here = copy.copy(job_spec)
        if own:
            here.address, job_spec.address = job_spec.endpoints[0][0], ""
        listeners.append(private_directory.listen(here, directory))
        for name in (b"SIRTAKI_HOSTNAME", b"HOROVOD_HOSTNAME"):
            job_spec.environ.pop(name, None)  # valid on this host only
        reached.write(job_spec.to_bytes(), os.environb)
        request.placed, request.remote_script = reached.placed(), reached.script()
        request.localhost = addresses.ipv4_beside(job_spec.endpoints[0][0])
        request.environ = remote_hosts.environment_for_mpiexec(request.environ)
        request.environ[spec.VARIABLE] = os.path.join(directory, "spec")
        return listeners


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the starter itself, which may copy it as text. The spec contains all variables."""
    return {n: v for n, v in environ.items() if _PLAIN_NAME.fullmatch(n) and "\n" not in v}


def _listen(job_spec: spec.Spec, own: Sequence[str]) -> list[socket.socket]:
    listeners = []
    for address in own:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=1024)
        listeners.append(listener)
        job_spec.endpoints.append((address, listener.getsockname()[1]))
    return listeners


def _remote(chosen: Namespace, where: list[Host], directory: str, limits: Limits) -> remote_hosts.Remote:
    shell = remote_hosts.Shell(
        agent=remote_hosts.agent_words(chosen.launch_agent, os.environ),
        arguments=remote_hosts.ssh_arguments(os.environ),
        port=chosen.ssh_port,
        key=chosen.ssh_identity_file,
        connect_seconds=max(1, min(_CONNECT_SECONDS, int(limits.start))),
        lost_after=limits.lost_after,
    )
    if shutil.which(shell.words("")[0]) is None and not all(addresses.is_own(host.name) for host in where):
        raise ValueError(
            f"there is no program {shell.words('')[0]!r} to start ranks on other hosts; --launch-agent and "
            f"{remote_hosts.AGENT_VARIABLE} name another program, whose arguments are the host and a command"
        )
    return remote_hosts.Remote(where, shell, directory)


def _why_final(code: int, number: int, job: Job) -> str:
    """Why a new start would fail in the same way. A later life may miss a host that is just starting again."""
    if code in _WRONG_USE:
        return f"exit code {code} means wrong arguments, or a program that cannot be executed"
    return "" if number or job.was_up() else "not all ranks had completed init(), so the job would fail again"
