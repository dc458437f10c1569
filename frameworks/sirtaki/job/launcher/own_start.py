"""Starts the workers of ranks without an mpiexec: as children on this host, through ssh and the agent on others."""

import os
import secrets
import selectors
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from sirtaki import starters
from sirtaki.host.signals import ignore_warnings
from sirtaki.job.launcher.failure import shell_code
from sirtaki.job.launcher.mpiexec import Mpiexec
from sirtaki.job.remote import addresses
from sirtaki.job.remote.remote_hosts import Remote
from sirtaki.starters.request import Host, Request

Numbers = tuple[int, int, int]  # rank, local rank, local size


class OwnStart(Mpiexec):
    """Takes the place of mpiexec. reached: the other hosts, None if all ranks run here. at_once: start() starts all."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        show: Callable[[bytes], None],
        eager: bool,
        *,
        request: Request,
        reached: Remote | None,
        at_once: bool = True,
    ) -> None:
        super().__init__(selector, show, eager)
        self._request = request
        self._reached = reached
        self._at_once = at_once
        self._job = secrets.token_hex(8)
        self._children: list[subprocess.Popen[bytes]] = []
        self._command: list[str] = []
        self._environ: dict[str, str] = {}

    def start(self, command: Sequence[str], environ: dict[str, str]) -> None:
        """command: of each worker. Raises OSError."""
        self._command, self._environ = list(command), environ
        read, self._write = os.pipe()
        self._watch(read)
        first = 0
        hosts = self._request.hosts or [Host(addresses.own_name(), self._request.ranks)]
        for host in hosts if self._at_once else ():
            self.add(host.name, [(first + local, local, host.slots) for local in range(host.slots)])
            first += host.slots

    def add(self, host: str, ranks: Sequence[Numbers]) -> None:
        """Starts workers on one host. Raises OSError."""
        own = [starters.OWN.variables(self._job, self._request.ranks, *numbers) for numbers in ranks]
        if addresses.is_own(host):
            for variables in own:
                self._popen(self._command, {**self._environ, **variables})
        else:
            assert self._reached is not None
            words = [shlex.join(["env", *(f"{k}={v}" for k, v in each.items()), *self._command]) for each in own]
            line = "".join(f"{word} & " for word in words) + "wait"
            alias = self._reached.aliases[host]
            self._popen([sys.executable, "-I", "-S", self._reached.script(), alias, line], self._environ)

    def _popen(self, command: Sequence[str], environ: dict[str, str]) -> None:
        """In a session of its own, so that only this process gets Ctrl-C. A worker ends when its launcher is gone."""
        child = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._write,
            stderr=self._write,
            start_new_session=True,
            preexec_fn=ignore_warnings,
        )
        self._children.append(child)

    def alive(self) -> bool:
        return None in [child.poll() for child in self._children]  # polls each, so that no zombie stays

    def silent(self) -> bool:
        return True

    def exit_code(self) -> int:
        return next((shell_code(child.returncode) for child in self._children if child.returncode), 0)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        for child in self._children:
            child.wait()

    def _send(self, number: int) -> None:
        self.terminated = self.terminated or self.alive()
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)
