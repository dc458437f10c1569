"""`sirtakirun`: reads the command line, prepares the job's private directory, and runs the job."""

import importlib
import os
import shlex
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

from sirtaki import starters
from sirtaki.host import cores, threads
from sirtaki.job.elastic import plan as elastic_plan
from sirtaki.job.launcher.screen import Screen
from sirtaki.job.protocol import spec
from sirtaki.job.remote import addresses
from sirtaki.launch import failure_folder, restarts, starter_choice
from sirtaki.launch.command_line import host_list, options, standard_input
from sirtaki.launch.job_start import JobStart
from sirtaki.libraries import mpi_library
from sirtaki.starters.request import Host

_COMMANDS = ("status", "top", "timeline")  # each in launch/NAME_command.py


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
        job = JobStart(chosen, job_spec, screen, where, plan, starter, program, library)
        return restarts.run(job.live, at_most, screen)


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
