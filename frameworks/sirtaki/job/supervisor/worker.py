"""Runs one rank: starts the user's program as a child, sends its output to the launcher, and leaves no process.

Two processes guard each other, so that kill -9 of either leaves no process. mpiexec starts, and may kill, the outer
one. The inner one has its own session and runs the program. It ends all processes below it when the program ends, when
the launcher asks or has ended, and when the outer one is asked to end or has ended. The outer one does the same if the
inner one ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

from sirtaki.host import processes
from sirtaki.host.signals import ignore_warnings
from sirtaki.job.protocol import channel
from sirtaki.job.protocol import spec as specs
from sirtaki.job.supervisor.supervisor import Supervisor

_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_CANNOT_START = 1


def main(argument: str) -> NoReturn:
    """argument: the file with the job's spec, or "-" if the spec is in the environment."""
    inherited = _inherited_descriptors()
    try:
        spec = specs.read(argument)
        rank = specs.rank_from(os.environ)
    except (OSError, KeyError, ValueError) as error:
        _print_error(f"cannot start a rank on {channel.own_host_name()}: {error}")
        sys.exit(_CANNOT_START)
    processes.become_subreaper()
    ignore_warnings()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    receive, send = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(send)
        os._exit(_inner(receive, spec, rank))
    for descriptor in (*inherited, receive):
        os.close(descriptor)
    _guard(inner, send)


def _guard(inner: int, line: int) -> NoReturn:
    """Waits for the inner process and passes signals on to it. Then ends the processes that it has left.

    line: a pipe to the inner process. A signal that the inner process also gets directly was sent to all processes.
    """
    status = None
    while status is None:
        number = signal.sigwait(_FORWARDED | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            with contextlib.suppress(BrokenPipeError):
                os.write(line, bytes([number]))
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == inner:
                    status = ended[1]
    processes.kill_descendants(os.getpid(), processes.reap_orphans)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _inner(outer: int, spec: specs.Spec, rank: int) -> int:
    try:
        os.setsid()
        processes.become_subreaper()
        if spec.directory:
            connection = channel.connect_local(spec.socket_path())
        else:
            connection = channel.connect_remote(spec.endpoints, spec.token, spec.lost_after)
        return Supervisor(spec, rank, connection, outer).run()
    except OSError as error:
        _print_error(f"rank {rank} on {channel.own_host_name()} did not start: {error}")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    processes.kill_descendants(os.getpid(), processes.reap_orphans)
    return _CANNOT_START


def _inherited_descriptors() -> list[int]:
    """Descriptors from mpiexec beyond stdin, stdout and stderr; they are for the user's program."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # the descriptor that listed the directory is closed again
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def _print_error(text: str) -> None:
    os.write(2, f"sirtakirun: {text}\n".encode(errors="surrogateescape"))
