"""`sirtakirun`: reads the command line, prepares the job's private directory, and runs the job."""

import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sirtaki import mpi_library
from sirtaki.launch import front, hosts, options, spec, threads
from sirtaki.launch.job import Job, Limits
from sirtaki.launch.screen import Screen

_SOCKET_PATH_LIMIT = 100  # bytes; the kernel allows 107
_PROGRAM = "start_worker.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; exits with code 2 itself when the command line is wrong."""
    chosen = options.parse(sys.argv[1:] if argv is None else argv)
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
        print(f"sirtakirun: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _launch(chosen: Namespace, ranks: int) -> int:
    where = _hosts(chosen, ranks)
    timeout = options.start_timeout(chosen)
    kind, program, library = _front(chosen)
    local = not where and kind != "srun"
    if local:
        _check_program(chosen.command[0])
    screen = Screen(ranks, bool(chosen.prefix_output_with_timestamp))
    job_spec = _spec(chosen, ranks, screen)
    note = threads.note(os.environ | chosen.environ, ranks, local)
    if note:
        screen.note(note)
    environ = front.for_mpiexec(front.without_identity(os.environ))
    with ExitStack() as stack:
        if local:
            directory = stack.enter_context(_directory())
            listener, argument, names = _for_here(job_spec, directory), os.path.join(directory, "spec"), []
        else:
            listener = _for_elsewhere(job_spec, chosen.nics or ())
            argument, names = spec.BY_ENVIRONMENT, spec.write_to_environment(job_spec, environ)
        stack.enter_context(listener)
        request = _request(chosen, ranks, where, argument, names, environ)
        command = _command(kind, program, library, request)
        if chosen.verbose:
            screen.note(shlex.join(command))
        limits = Limits(start=timeout, grace=job_spec.grace)
        job = Job(ranks, [listener], job_spec.token, screen, limits=limits, verbose=chosen.verbose)
        return job.run(command, environ)


def _request(
    chosen: Namespace, ranks: int, where: list[hosts.Host], argument: str, names: list[str], environ: dict[str, str]
) -> front.Request:
    return front.Request(
        program=[sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), _PROGRAM), argument],
        ranks=ranks,
        hosts=where,
        pass_on=names,
        nics=chosen.nics or (),
        ssh_port=chosen.ssh_port,
        ssh_identity_file=chosen.ssh_identity_file,
        binding_args=chosen.binding_args,
        mpi_args=chosen.mpi_args,
        environ=environ,
    )


def _hosts(chosen: Namespace, ranks: int) -> list[hosts.Host]:
    """The hosts to run on; empty for this one. Raises ValueError when they have too few slots."""
    if chosen.hosts is not None:
        found = hosts.from_list(chosen.hosts)
    elif chosen.hostfile is not None:
        found = hosts.from_file(chosen.hostfile)
    else:
        return []
    hosts.check_slots(found, ranks)
    return [] if hosts.all_local(found) else found


def _front(chosen: Namespace) -> tuple[str, str, str]:
    """What starts the ranks, as (kind, program, library). Raises ValueError or MpiNotFoundError."""
    library = mpi_library.find()
    srun = shutil.which("srun")
    if chosen.launcher == "srun" or (chosen.launcher == "auto" and srun and "SLURM_JOB_ID" in os.environ):
        if not srun:
            raise ValueError("--launcher srun: there is no srun in PATH")
        return "srun", srun, library.path
    if library.mpiexec is None:
        raise mpi_library.MpiNotFoundError(
            f"no mpiexec belongs to {library.path} ({library.reason}): looked beside it and in PATH; "
            f"put the bin directory of that MPI into PATH, or choose another MPI with {mpi_library.VARIABLE}"
        )
    return mpi_library.flavour(library.mpiexec)[0], library.mpiexec, library.path


def _command(kind: str, program: str, library: str, request: front.Request) -> list[str]:
    if kind == "srun":
        return front.srun(program, request, front.srun_pmi(program, library))
    if kind == "hydra":
        return front.hydra(program, request)
    return front.openmpi(program, request, newer=kind == "prrte")


def _spec(chosen: Namespace, ranks: int, screen: Screen) -> spec.Spec:
    environ = dict(os.environb)
    if environ.pop(b"", None) is not None:
        screen.note("an environment variable without a name cannot be exported: skipped")
    kept = {os.fsencode(name) for name in front.without_identity(os.environ)}
    environ = {name: value for name, value in environ.items() if name in kept}
    environ.update({name.encode(): value.encode() for name, value in chosen.environ.items()})
    environ.setdefault(b"PYTHONUNBUFFERED", b"1")  # lines come when they are printed
    result = spec.Spec(
        size=ranks,
        command=[os.fsencode(word) for word in chosen.command],
        environ=environ,
        cwd=os.getcwdb(),
    )
    result.threads = threads.unset({os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()})
    if chosen.output_filename:
        result.output = os.path.abspath(os.fsencode(chosen.output_filename))
    return result


def _check_program(word: str) -> None:
    """Raises ValueError when the program is not there: said once, not by every rank."""
    if shutil.which(word) is not None:
        return
    hint = f"; to run a Python script: sirtakirun -np N python {shlex.quote(word)}" if word.endswith(".py") else ""
    if os.path.isfile(word) and os.sep in word:
        raise ValueError(f"{word!r} is not executable{hint}")
    raise ValueError(f"there is no program {word!r}{hint}")


@contextmanager
def _directory() -> Iterator[str]:
    """A directory that only this user can enter, for the job's spec and socket."""
    path = tempfile.mkdtemp(prefix="sirtaki-")  # mode 0700
    if len(os.fsencode(path)) + len("/socket") > _SOCKET_PATH_LIMIT:
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix="sirtaki-", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _for_here(job_spec: spec.Spec, directory: str) -> socket.socket:
    """Leaves the spec in a file; returns the socket that workers connect to."""
    job_spec.directory = directory
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(job_spec.socket_path())
    listener.listen(socket.SOMAXCONN)
    mode = stat.S_IRUSR | stat.S_IWUSR
    file = os.open(os.path.join(directory, "spec"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(file, "wb") as stream:
        stream.write(job_spec.to_bytes())
    return listener


def _for_elsewhere(job_spec: spec.Spec, nics: Sequence[str]) -> socket.socket:
    """Puts into the spec how to reach the socket that is returned."""
    job_spec.token = secrets.token_bytes(32)
    listener = socket.create_server(("", 0), backlog=1024)
    job_spec.port = listener.getsockname()[1]
    job_spec.addresses = _addresses(nics)
    return listener


def _addresses(nics: Sequence[str]) -> list[str]:
    """This host's IPv4 addresses that others may reach it by. Raises ValueError for an interface that is not there."""
    import psutil

    present = psutil.net_if_addrs()
    for name in nics:
        if name not in present:
            raise ValueError(f"--network-interfaces {name}: not on this host, which has {', '.join(sorted(present))}")
    found = [a.address for n in (nics or present) for a in present[n] if a.family == socket.AF_INET]
    outside = [address for address in found if not address.startswith("127.")]
    return outside or found
