"""Asks the user's script, every second, which hosts an elastic job may use."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from sirtaki.host.timers import Timers
from sirtaki.launch.command_line import host_list
from sirtaki.starters.request import Host

_EVERY = 1.0  # seconds between two runs
_LONGEST = 60.0  # seconds of one run
_LONGEST_ANSWER = 1 << 20  # bytes


def run(script: str, slots: int) -> list[Host]:
    """Runs the script once, and waits for it. ValueError if it fails, or prints something else than hosts."""
    try:
        process = _start(script, subprocess.PIPE)
    except OSError as error:
        raise ValueError(f"--host-discovery-script {script}: {error}") from None
    try:
        out, err = process.communicate(timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        raise ValueError(_too_long(script)) from None
    finally:
        _kill(process)
    return _read(script, slots, process.returncode, out, err)


def _start(script: str, err: int) -> subprocess.Popen[bytes]:
    """The shell runs it, so it may have arguments. It has a process group of its own."""
    words = ["/bin/sh", "-c", script]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": err}
    return subprocess.Popen(words, **streams, start_new_session=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Also what the script has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _too_long(script: str) -> str:
    return f"--host-discovery-script {script}: it has not ended within {_LONGEST:g} s"


def _read(script: str, slots: int, code: int, out: bytes, err: bytes) -> list[Host]:
    where = f"--host-discovery-script {script}"
    if code:
        words = err.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"{where}: exit code {code}{': ' if words else ''}{''.join(words)}")
    return host_list.from_text(out, where, slots) if out.strip() else []


class Discovery:
    """Runs the script beside the job, in the job's loop. slots: of a host that the script prints without a number.

    on_hosts(hosts): called when they have changed. on_problem(text): when the script fails, once for each text; the
    hosts stay as they are.
    """

    def __init__(
        self,
        script: str,
        slots: int,
        first: list[Host],
        on_hosts: Callable[[list[Host]], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._script, self._slots, self._hosts = script, slots, first
        self._on_hosts, self._on_problem = on_hosts, on_problem
        self._problem = ""
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._answer = bytearray()

    def start(self, selector: selectors.BaseSelector, timers: Timers) -> None:
        self._selector, self._timers = selector, timers
        self._timers.at(time.monotonic() + _EVERY, self._ask)

    def stop(self) -> None:
        self._stopped = True
        if self._script:
            self._timers.cancel(self._ask)
            self._timers.cancel(self._end)
        if self._process is not None:
            _kill(self._process)

    def _ask(self) -> None:
        self._answer.clear()
        try:
            self._process = _start(self._script, subprocess.STDOUT)
        except OSError as error:
            self._note(str(error))
            self._timers.at(time.monotonic() + _EVERY, self._ask)
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._on_words)
        self._timers.at(time.monotonic() + _LONGEST, self._end)

    def _end(self) -> None:
        """It takes too long."""
        assert self._process is not None
        self._note(_too_long(self._script))
        _kill(self._process)

    def _on_words(self, pipe: object, events: int) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self._answer += data
        if data and len(self._answer) <= _LONGEST_ANSWER:
            return
        self._selector.unregister(self._process.stdout)
        self._process.stdout.close()
        self._timers.cancel(self._end)
        code = self._process.wait()
        self._process = None
        if self._stopped:
            return
        self._timers.at(time.monotonic() + _EVERY, self._ask)
        if code != -signal.SIGKILL:
            self._take(code)

    def _take(self, code: int) -> None:
        answer = bytes(self._answer)
        try:
            hosts = _read(self._script, self._slots, code, answer, answer)
        except ValueError as error:
            self._note(str(error))
            return
        self._problem = ""
        if hosts != self._hosts:
            self._hosts = hosts
            self._on_hosts(hosts)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)
