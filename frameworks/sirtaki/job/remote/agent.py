"""The agent, one on each host other than the launcher's: runs mpiexec's command there, and ends it with the job.

It reads the command from stdin, which ssh encrypts; other users can see command lines and environments. The job's spec
stays in this process's memory, where the workers below it find it. When stdin or the launcher ends, the agent ends all
processes that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping

from sirtaki.host import open_files, processes
from sirtaki.host.signals import ignore_warnings
from sirtaki.host.timers import NEVER
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.spec import VARIABLE, Spec
from sirtaki.job.protocol.time_limits import AFTER_GRACE

_HEADER = struct.Struct(">II")
_LONGEST = 1 << 28
_ENDED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FAILED = 1


def order(host: str, command: str, spec: bytes) -> bytes:
    """The agent's input: the shell command to run, and the spec of the job."""
    words = json.dumps({"host": host, "command": command}).encode()
    return _HEADER.pack(len(words), len(spec)) + words + spec


def main(arguments: list[str]) -> int:
    """Returns the exit code of the command. With --check, only reports that it could run one."""
    if arguments == ["--check"]:
        print(f"ranks can be started on {channel.own_host_name()}: Python {sys.version.split()[0]}, {__file__}")
        return 0
    try:
        words, data = _read_order()
        spec = Spec.from_bytes(data)
        open_files.provide_on_other_host(spec.size)
        connection = channel.connect_remote(spec.endpoints, spec.token, spec.lost_after)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"sirtakirun: cannot start ranks on {channel.own_host_name()}: {error}\n")
        return _FAILED
    return _Agent(words["host"], connection, spec).run(words["command"], data)


def _read_order() -> tuple[dict[str, str], bytes]:
    first, second = _HEADER.unpack(_exactly(_HEADER.size))
    if max(first, second) > _LONGEST:
        raise ValueError("stdin holds data that sirtakirun did not send: does a start-up file of the shell read stdin?")
    words = json.loads(_exactly(first))
    return words, _exactly(second)


def _exactly(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(0, min(count - len(data), 1 << 16))
        if not piece:
            raise ValueError("stdin ended too early; ssh, or the program used in its place, must forward stdin")
        data += piece
    return bytes(data)


class _Agent:
    def __init__(self, host: str, connection: socket.socket, spec: Spec) -> None:
        self._host = host
        self._connection = connection
        self._spec = spec
        self._selector = selectors.PollSelector()
        self._incoming = channel.Frames()
        self._kill_at = NEVER
        self._notify("arrived", True)

    def run(self, command: str, data: bytes) -> int:
        processes.become_subreaper()
        ignore_warnings()
        wake = _watch_signals()
        memory = os.memfd_create("sirtaki", os.MFD_CLOEXEC)
        os.write(memory, data)
        environ = _environment(self._spec, f"/proc/{os.getpid()}/fd/{memory}")
        child = subprocess.Popen(
            ["/bin/sh", "-c", command], env=environ, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._selector.register(0, selectors.EVENT_READ, self._on_stdin)
        self._selector.register(self._connection, selectors.EVENT_READ, self._on_launcher)
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)
        while child.poll() is None and self._wait():
            pass
        if child.returncode != 0:  # with 0, it may have started a daemon in the background, as Open MPI's does
            self._end(self._spec.grace + AFTER_GRACE)
        while _has_children() and self._wait():  # workers still report how their ranks end
            pass
        processes.kill_descendants(os.getpid(), processes.reap_orphans)
        self._notify("leaves", True)
        code = child.returncode if child.returncode is not None else -signal.SIGKILL
        return code if code >= 0 else 128 - code

    def _wait(self) -> bool:
        """Waits for any event. False when it is time to kill."""
        timeout = None if self._kill_at == NEVER else max(0.0, self._kill_at - time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data(key.fileobj)
        return time.monotonic() < self._kill_at

    def _notify(self, what: str, value: object) -> None:
        with contextlib.suppress(OSError):
            message = json.dumps({"host": self._host, what: value}).encode()
            self._connection.sendall(channel.frame(channel.HOST, message))

    def _end(self, seconds: float) -> None:
        """Workers have noticed the end themselves and end their programs. Kills those left after `seconds`."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _on_stdin(self, descriptor: int) -> None:
        if not os.read(descriptor, 4096):
            self._selector.unregister(descriptor)
            self._notify("lost", "ssh, which started its ranks, has ended")
            self._end(self._spec.grace + AFTER_GRACE)

    def _on_launcher(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            self._end(self._spec.grace + AFTER_GRACE)
        for kind, payload in self._incoming.feed(data):
            if kind == channel.END and payload == bytes([signal.SIGKILL]):
                self._end(0)
            elif kind == channel.END:
                self._end(self._spec.grace + AFTER_GRACE)

    def _on_signal(self, wake: socket.socket) -> None:
        if any(number in _ENDED_BY for number in wake.recv(1024)):
            self._end(self._spec.grace + AFTER_GRACE)


def _has_children() -> bool:
    """Takes the exit codes of ended children. Orphans below this process become its children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _watch_signals() -> socket.socket:
    receive, send = socket.socketpair()
    send.setblocking(False)
    for number in (*_ENDED_BY, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(send.detach(), warn_on_full_buffer=False)
    return receive


def _environment(spec: Spec, place: str) -> Mapping[bytes, bytes]:
    """The environment of ssh's shell, plus the search paths for the MPI as on the launcher's host."""
    found: dict[bytes, bytes] = {
        name: spec.environ[name] for name in (b"PATH", b"LD_LIBRARY_PATH") if name in spec.environ
    }
    return {**os.environb, **found, VARIABLE.encode(): place.encode()}
