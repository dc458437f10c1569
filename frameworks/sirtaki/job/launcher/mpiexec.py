"""The process of mpiexec: runs in its own session, ends with this process. Its output is kept until it is needed."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from sirtaki.host import processes
from sirtaki.host.signals import ignore_warnings
from sirtaki.host.timers import NEVER
from sirtaki.job.launcher.failure import shell_code

_WAIT_FOR_REASON = 1.0  # seconds until its output is shown: a rank's failure within that time explains it


def _become(parent: int) -> None:
    """mpiexec, its daemons and ssh ignore warning signals, as workers do: Hydra would die of SIGUSR2."""
    ignore_warnings()
    processes.die_with_parent(signal.SIGTERM, parent)


class Mpiexec:
    """show: called with output to be shown. eager: show it at once."""

    def __init__(self, selector: selectors.BaseSelector, show: Callable[[bytes], None], eager: bool) -> None:
        self._selector = selector
        self._show = show
        self._eager = eager
        self._words = bytearray()
        self._pipes: set[int] = set()
        self.show_at = NEVER
        self.terminated = False  # by this process

    def start(self, command: Sequence[str], environ: dict[str, str]) -> None:
        """Starts it in its own session, so that only this process gets Ctrl-C. Raises OSError."""
        parent = os.getpid()
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: _become(parent),  # this process has no other thread yet
        )
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            self._watch(pipe.fileno())

    def _watch(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipes.add(pipe)
        self._selector.register(pipe, selectors.EVENT_READ, self._on_words)

    def alive(self) -> bool:
        return self._process.poll() is None

    def silent(self) -> bool:
        """Whether all processes have closed its output."""
        return not self._pipes

    def exit_code(self) -> int:
        return shell_code(self._process.wait())

    def terminate(self) -> None:
        if self.alive():
            self.terminated = True
            self._process.terminate()

    def kill(self) -> None:
        if self.alive():
            self._process.kill()
            self._process.wait()

    def show_words(self) -> None:
        """Shows its output that was not shown yet."""
        self.show_at = NEVER
        if self._words:
            self._show(bytes(self._words) + (b"" if self._words.endswith(b"\n") else b"\n"))
        self._words.clear()

    def forget_words(self) -> None:
        self.show_at = NEVER
        self._words.clear()

    def _on_words(self, pipe: int, events: int) -> None:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            self._pipes.remove(pipe)
            return
        self._words += data
        if self._eager:
            self.show_words()
        elif self.show_at == NEVER:
            self.show_at = time.monotonic() + _WAIT_FOR_REASON
