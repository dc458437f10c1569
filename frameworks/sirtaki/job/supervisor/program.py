"""Starts the user's program for a rank, with its output in pipes."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from sirtaki import starters
from sirtaki.host import cores, processes
from sirtaki.host.signals import PASSED_ON
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.spec import Spec, program_environment
from sirtaki.job.supervisor import rank_link

_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def start(spec: Spec, line: str, address: str) -> tuple[int, int, int]:
    """Returns the program's pid and the read ends of its stdout and stderr.

    Call it on the main thread only: the program dies with the calling thread. line: the name of the socket by which the
    rank finds its supervisor. address: where it accepts connections of other ranks, in a job without MPI.
    """
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    environ = program_environment(spec, os.environb, cores.available())
    environ[rank_link.VARIABLE.encode()] = line.encode()
    if spec.address is not None:
        environ[rank_link.ADDRESS_VARIABLE.encode()] = address.encode()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # a signal before exec must not run our handlers
    pid = os.fork()
    if pid == 0:
        _become(spec, parent, (out_end, err_end), environ)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for descriptor in (out_end, err_end):
        os.close(descriptor)
    for descriptor in (out, err):
        os.set_blocking(descriptor, False)
    return pid, out, err


def _become(spec: Spec, parent: int, ends: tuple[int, int], environ: dict[bytes, bytes]) -> NoReturn:
    """In the new child: creates a process group, and resets this interpreter's signal settings."""
    code = 126
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*_WATCHED, *PASSED_ON, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        processes.die_with_parent(signal.SIGKILL, parent)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((nothing, *ends)):
            os.dup2(source, target)
        if own := own_cores(spec):
            os.sched_setaffinity(0, own)
        os.chdir(spec.cwd)
        os.execvpe(spec.command[0], spec.command, environ)
    except FileNotFoundError as error:
        code = 127
        _print_error(spec, error)
    except (OSError, ValueError) as error:
        _print_error(spec, error)
    finally:
        os._exit(code)


def own_cores(spec: Spec) -> set[int]:
    """The cores of this rank; empty if all ranks of the host share the cores."""
    if not spec.binds:
        return set()
    ranks = starters.announced_local_size(os.environ) or spec.size
    local_rank = starters.announced_local_rank(os.environ)
    return cores.share(local_rank, ranks) if ranks > 1 and local_rank is not None else set()


def _print_error(spec: Spec, error: OSError | ValueError) -> None:
    what = f"cannot start {os.fsdecode(spec.command[0])!r} on {channel.own_host_name()}"
    if getattr(error, "filename", None) == spec.cwd:
        what += f" in directory {os.fsdecode(spec.cwd)!r}"
    words = getattr(error, "strerror", None) or str(error)
    os.write(2, f"sirtakirun: {what}: {words}\n".encode(errors="surrogateescape"))
