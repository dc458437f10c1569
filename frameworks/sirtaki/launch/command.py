"""`sirtakirun`: reads the command line, prepares the job's private directory, and runs the job."""

import copy
import importlib
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from sirtaki import starters
from sirtaki.host import cores, open_files, threads
from sirtaki.launch import dry_run, failure_folder, metrics, restarts, running_jobs, starter_choice
from sirtaki.launch.command_line import host_list, options, standard_input
from sirtaki.launch.elastic import plan as elastic_plan
from sirtaki.launch.elastic.job import ElasticJob, ElasticStart
from sirtaki.launch.elastic.plan import Plan
from sirtaki.launch.job import status
from sirtaki.launch.job.job import Job, Limits
from sirtaki.launch.job.mpiexec import Mpiexec
from sirtaki.launch.job.own_start import OwnStart
from sirtaki.launch.job.screen import Screen
from sirtaki.launch.protocol import private_directory, spec
from sirtaki.launch.remote import addresses, remote_hosts
from sirtaki.libraries import mpi_library
from sirtaki.starters.request import Host, Request

_PROGRAM = "worker/start_worker.py"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMANDS = ("status", "top", "timeline")  # each in launch/NAME_command.py
_WRONG_USE = (2, 126, 127)  # exit codes, as Python and shells use them
_CONNECT_SECONDS = 10  # for ssh to one host; less if the start timeout is shorter


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. Exits with code 2 if the command line is wrong."""
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(words: list[str]) -> int:
    if words[:1] and words[0] in _COMMANDS:
        return importlib.import_module(f"sirtaki.launch.{words[0]}_command").main(words[1:])
    chosen = options.parse(words)
    if chosen.version:
        from sirtaki.version import __version__

        print(__version__)
        return 0
    if chosen.check_build:
        from sirtaki.launch import check

        return check.main()
    ranks = options.ranks(chosen)
    try:
        return _launch(chosen, ranks)
    except (ValueError, OSError, mpi_library.MpiNotFoundError) as error:
        print(f"sirtakirun: {_explanation(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _explanation(error: Exception) -> str:
    """The message. An OSError without a file is raised by Sirtaki itself; its number has no meaning."""
    return error.strerror or str(error) if isinstance(error, OSError) and error.filename is None else str(error)


def _launch(chosen: Namespace, ranks: int) -> int:
    _check_input(chosen.command)
    at_most = options.restarts(chosen)
    plan = elastic_plan.of(chosen, ranks)
    where = _hosts(chosen, ranks) if plan is None else plan.hosts_to_reach()
    starter, program, library = starter_choice.choose(chosen)
    local = not where and not starter.places_ranks
    if local:
        _check_program(chosen.command[0])
    screen = Screen(ranks if plan is None else plan.need + 1, bool(chosen.prefix_output_with_timestamp))
    job_spec = _spec(chosen, ranks, screen)
    note = threads.note(os.environ | chosen.environ, ranks, local)
    if note and not chosen.dry_run:
        screen.note(note)
    with restarts.leaving_in_order(), failure_folder.provide(job_spec.environ, not chosen.dry_run):
        live = partial(_live, chosen, job_spec, screen, where, plan, starter, program, library)
        return restarts.run(live, at_most, screen)


def _live(
    chosen: Namespace,
    origin: spec.Spec,
    screen: Screen,
    where: list[Host],
    plan: Plan | None,
    starter: starters.Starter,
    program: str,
    library: str,
    number: int,
) -> restarts.Life:
    """Starts the job once, with a directory and a secret of its own, and runs it to its end. number: of the restart."""
    job_spec = copy.deepcopy(origin)
    job_spec.restart = number
    if plan is not None:
        job_spec.environ |= {b"SIRTAKI_ELASTIC": b"1", b"HOROVOD_ELASTIC": b"1"}
    ranks, local = job_spec.size, not where and not starter.places_ranks
    limits = Limits(start=options.start_timeout(chosen), grace=job_spec.grace, lost_after=job_spec.lost_after)
    with ExitStack() as stack:
        request = _request(chosen, ranks, where, library)
        directory, reached = "", None
        if local or (where and not starter.places_ranks and not remote_hosts.is_left_to_mpiexec(chosen.mpi_args)):
            directory = stack.enter_context(private_directory.make())
            reached = None if local else _remote(chosen, where, directory, limits)
        grows = plan is not None and plan.may_grow()
        listeners = _prepare(request, starter, reached, job_spec, directory, grows)
        for listener in listeners:
            stack.enter_context(listener)
        command = starter.command(program, request)
        if chosen.dry_run:
            print(dry_run.plan(request, reached, job_spec, command), end="")
            return restarts.Life(0)
        here = ranks if local else sum(host.slots for host in where if addresses.is_own(host.name))
        open_files.provide(here, ranks - here)
        if chosen.verbose:
            screen.note(shlex.join(command))
        details: dict[str, Any] = {
            "starter": starter,
            "limits": limits,
            "verbose": chosen.verbose,
            "title": status.title(chosen.command, ranks, number),
            "records": failure_folder.of_life(job_spec.environ, number),
        }
        if plan is not None:
            details["start"] = partial(ElasticStart, request=request, reached=reached, at_once=False)
            job: Job = ElasticJob(ranks, listeners, job_spec.token, screen, plan=plan, reached=reached, **details)
        else:
            own = starter is starters.OWN
            details["start"] = partial(OwnStart, request=request, reached=reached) if own else Mpiexec
            details["arrivals"] = remote_hosts.Arrivals(reached) if reached is not None else None
            job = Job(ranks, listeners, job_spec.token, screen, **details)
        asked = stack.enter_context(status.listen())
        job.status.serve(asked)
        serving = metrics.serving(running_jobs.name_of(asked), chosen.metrics_port, chosen.metrics_file)
        code = job.run(command, request.environ, stack.enter_context(serving))
    return restarts.Life(code, job.failure(code), _why_final(code, number, job))


def _why_final(code: int, number: int, job: Job) -> str:
    """Why a new start would fail in the same way. A later life may miss a host that is just starting again."""
    if code in _WRONG_USE:
        return f"exit code {code} means wrong arguments, or a program that cannot be executed"
    return "" if number or job.was_up() else "not all ranks had completed init(), so the job would fail again"


def _request(chosen: Namespace, ranks: int, where: list[Host], library: str) -> Request:
    return Request(
        program=[sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), _PROGRAM)],
        ranks=ranks,
        hosts=where,
        nics=chosen.nics or (),
        ssh_port=chosen.ssh_port,
        ssh_identity_file=chosen.ssh_identity_file,
        binding_args=chosen.binding_args,
        mpi_args=chosen.mpi_args,
        library=library,
        environ=_plain(starters.without_identity(os.environ)),
    )


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the starter itself, which may copy it as text. The spec contains all variables."""
    return {n: v for n, v in environ.items() if _PLAIN_NAME.fullmatch(n) and "\n" not in v}


def _prepare(
    request: Request,
    starter: starters.Starter,
    reached: remote_hosts.Remote | None,
    job_spec: spec.Spec,
    directory: str,
    grows: bool,
) -> list[socket.socket]:
    """Stores the spec where the workers look for it. Returns the sockets that they connect to.

    reached: the other hosts, None if there are none or the starter reaches them. directory: the job's private one, ""
    if no rank runs on this host or another program starts the ranks of other hosts. grows: other hosts may follow.
    """
    own = starter is starters.OWN
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


def _listen(job_spec: spec.Spec, own: Sequence[str]) -> list[socket.socket]:
    listeners = []
    for address in own:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=1024)
        listeners.append(listener)
        job_spec.endpoints.append((address, listener.getsockname()[1]))
    return listeners


def _hosts(chosen: Namespace, ranks: int) -> list[Host]:
    """The hosts to run on; empty for this host. ValueError if they have too few slots."""
    if chosen.hosts is not None:
        found = host_list.from_list(chosen.hosts)
    elif chosen.hostfile is not None:
        found = host_list.from_file(chosen.hostfile)
    else:
        return []
    host_list.check_slots(found, ranks)
    used = host_list.filled(found, ranks)
    if all(addresses.is_own(host.name) for host in used):
        return []
    for host in used:
        addresses.refuse_loopback(host.name, [other.name for other in used])
    return used


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


def _spec(chosen: Namespace, ranks: int, screen: Screen) -> spec.Spec:
    environ = dict(os.environb)
    if environ.pop(b"", None) is not None:
        screen.note("skipped an environment variable without a name: it cannot be exported")
    kept = {os.fsencode(name) for name in starters.without_identity(os.environ)}
    environ = {name: value for name, value in environ.items() if name in kept}
    environ.update({name.encode(): value.encode() for name, value in chosen.environ.items()})
    environ.setdefault(b"PYTHONUNBUFFERED", b"1")  # shows lines at once
    result = spec.Spec(
        size=ranks,
        command=[os.fsencode(word) for word in chosen.command],
        environ=environ,
        cwd=_working_directory(),
    )
    if chosen.use_mpi:
        environ[b"SIRTAKI_CONTROL"] = b"mpi"
    result.lost_after = options.lost_after(chosen)
    result.grace = options.grace(chosen)
    result.threads = threads.unset({os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()})
    result.binds = chosen.binding_args is None and cores.can_bind(os.environ)
    if chosen.output_filename:
        result.output = os.path.abspath(os.fsencode(chosen.output_filename))
    return result


def _working_directory() -> bytes:
    try:
        return os.getcwdb()
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "the working directory does not exist any more") from None


def _check_input(words: Sequence[str]) -> None:
    if standard_input.is_needed(words):
        raise ValueError(
            f"{shlex.join(words)} would read its program from stdin, which is /dev/null on all ranks; "
            "put the program into a file that exists on all hosts"
        )


def _check_program(word: str) -> None:
    """ValueError if the program does not exist: one message instead of one from every rank."""
    if shutil.which(word) is not None:
        return
    hint = f"; to run a Python script: sirtakirun -np N python {shlex.quote(word)}" if word.endswith(".py") else ""
    if os.path.isfile(word) and os.sep in word:
        raise ValueError(f"{word!r} is not executable{hint}")
    raise ValueError(f"there is no program {word!r}{hint}")
