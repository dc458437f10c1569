"""Starts ranks on other hosts: how each host is reached, and which have been reached."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sirtaki.job.protocol.private_directory import leave
from sirtaki.job.remote import addresses
from sirtaki.starters.request import Host

AGENT_VARIABLE = "SIRTAKI_LAUNCH_AGENT"
# With these in --mpi-args, the user chooses how ranks of other hosts start.
_OWN_START = ("-launcher", "-launcher-exec", "plm_rsh_agent", "plm_ssh_agent", "--launcher", "--launcher-exec")
_AGENTS = ("HYDRA_LAUNCHER_EXEC", "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
_ARGUMENTS = ("HYDRA_LAUNCHER_EXTRA_ARGS", "OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args")
_SHELL = "remote_shell.py"
# mpiexec and its processes on other hosts need these. It gets no others, as its connections are not private.
_FOR_MPIEXEC = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "SIRTAKI_HOSTNAME")
_PREFIXES_FOR_MPIEXEC = ("HYDRA_", "MPIEXEC_", "OMPI_", "OPAL_", "PRTE_", "PMIX_MCA_", "LC_")


@dataclass
class Shell:
    """Makes the command that runs a command on a host. agent: the site's own program in place of ssh; its arguments are
    host and command. arguments: additional ones for ssh.
    """

    agent: Sequence[str] = ()
    arguments: Sequence[str] = ()
    port: int | None = None
    key: str | None = None
    connect_seconds: int = 10
    lost_after: float = 0

    def words(self, host: str) -> list[str]:
        if self.agent:
            return [*self.agent, host]
        words = ["ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_seconds}"]
        if self.lost_after > 0:
            words += ["-o", f"ServerAliveInterval={max(1, round(self.lost_after / 3))}", "-o", "ServerAliveCountMax=3"]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.key is not None:
            words += ["-i", os.path.abspath(self.key)]
        return [*words, *self.arguments, host]

    def command(self, host: str) -> list[str]:
        return [*self.words(host), shlex.join(_agent_words())]

    def by_hand(self, host: str) -> str:
        """The command for the user to try in a terminal."""
        return shlex.join([*self.words(host), shlex.join([*_agent_words(), "--check"])])


def _agent_words() -> list[str]:
    return [sys.executable, "-I", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_agent.py")]


@dataclass
class Remote:
    """hosts: with the number of ranks of each, including this host. directory: the job's private one."""

    hosts: Sequence[Host]
    shell: Shell
    directory: str
    localhost: str | None = None  # mpiexec's address for other hosts; None for its own choice
    aliases: dict[str, str] = field(default_factory=dict)  # by the host's name: its name for mpiexec
    _environ: list[list[str]] = field(default_factory=list)  # for ssh

    def __post_init__(self) -> None:
        self._give_aliases()

    def _give_aliases(self) -> None:
        own = addresses.own_name()
        for number, host in enumerate(self.hosts):
            plain = own if addresses.is_own(host.name) else host.name.rpartition("@")[2]
            self.aliases[host.name] = f"sirtaki-host-{number}" if ":" in plain else plain

    def add(self, hosts: Sequence[Host]) -> None:
        """After write(): these hosts can be reached, too."""
        new = [host for host in hosts if host.name not in self.aliases]
        if new:
            self.hosts = [*self.hosts, *new]
            self._give_aliases()
            self._write_ways()

    def name_of(self, alias: str) -> str:
        """The host's name as the user gave it. ValueError for an alias of no host."""
        found = next((name for name in self.others() if self.aliases[name] == alias), "")
        if not found:
            raise ValueError(f"there is no host {alias!r} in this job")
        return found

    def others(self) -> list[str]:
        return [host.name for host in self.hosts if not addresses.is_own(host.name)]

    def placed(self) -> list[str]:
        """The hosts under their names for mpiexec."""
        return [f"{self.aliases[host.name]}:{host.slots}" for host in self.hosts]

    def script(self) -> str:
        return os.path.join(self.directory, _SHELL)

    def write(self, spec: bytes, environ: Mapping[bytes, bytes]) -> None:
        """Writes the files that remote_shell.py needs into the directory."""
        self._environ = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in environ.items()]
        self._write_ways()
        leave(self.directory, "remote-spec", spec)
        packages = os.path.abspath(f"{__file__}/../../../..")
        lines = ["# The first line is skipped: Hydra gives Python ssh's -x.", "import sys"]
        lines += [f"sys.path.append({packages!r})", "from sirtaki.job.remote.remote_shell import main"]
        lines += [f"sys.exit(main({self.directory!r}, sys.argv[1:]))"]
        leave(self.directory, _SHELL, "\n".join(lines).encode(errors="surrogateescape"))

    def _write_ways(self) -> None:
        """How each host is reached. A remote shell that is just starting reads the old file, or the new one."""
        commands = {self.aliases[name]: self.shell.command(name) for name in self.others()}
        ways = json.dumps({"hosts": commands, "environ": self._environ})
        written = leave(self.directory, "remote.new", ways.encode())
        os.replace(written, os.path.join(self.directory, "remote"))


def is_left_to_mpiexec(mpi_args: str | None) -> bool:
    """Whether the user's --mpi-args choose how mpiexec starts ranks on other hosts."""
    return any(word in _OWN_START for word in shlex.split(mpi_args or ""))


def agent_words(option: str | None, environ: Mapping[str, str]) -> list[str]:
    """The site's own agent: from --launch-agent, else from variables of Sirtaki and the MPIs. Empty for ssh."""
    words = shlex.split(option) if option else _first_words((AGENT_VARIABLE, *_AGENTS), environ)
    return [] if "".join(words) in ("ssh", "ssh:rsh") else words  # MPIs' own defaults


def ssh_arguments(environ: Mapping[str, str]) -> list[str]:
    """Arguments for ssh from the environment, under the MPIs' names."""
    return _first_words(_ARGUMENTS, environ)


def _first_words(names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The words of the first of these variables that is not empty. ValueError with its name and value."""
    for name in names:
        try:
            if words := shlex.split(environ.get(name, "")):
                return words
        except ValueError as error:
            raise ValueError(f"{name}={environ[name]!r}: {error}") from None
    return []


def environment_for_mpiexec(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that mpiexec itself gets; it sends them unencrypted."""
    kept = {n: v for n, v in environ.items() if n in _FOR_MPIEXEC or n.startswith(_PREFIXES_FOR_MPIEXEC)}
    return {name: value for name, value in kept.items() if name not in ("HYDRA_LAUNCHER", *_AGENTS, *_ARGUMENTS)}


class Arrivals:
    """Which hosts have been reached, and why others have not."""

    def __init__(self, remote: Remote) -> None:
        self._names = {remote.aliases[name]: name for name in remote.others()}
        self._places: dict[str, tuple[int, str]] = {}
        first = 0
        for host in remote.hosts:
            self._places[remote.aliases[host.name]] = (first, host.name)
            first += host.slots
        self._shell = remote.shell
        self._arrived: set[str] = set()
        self._failed: dict[str, dict[str, Any]] = {}

    def note(self, message: Mapping[str, Any]) -> bool:
        """Records a message from an agent or a remote shell. True if its host cannot be reached."""
        alias = message.get("host")
        if alias not in self._names:
            raise ValueError(f"there is no host {alias!r} in this job")
        if message.get("arrived"):
            self._arrived.add(alias)
            return False
        if alias in self._arrived:
            return False
        self._failed[alias] = dict(message)
        return True

    def place(self, message: Mapping[str, Any]) -> tuple[int, str]:
        """(first rank of the message's host, that host's name as the user gave it)."""
        return self._places[message["host"]]

    def complete(self) -> bool:
        return len(self._arrived) + len(self._failed) >= len(self._names)

    def any_failed(self) -> bool:
        return bool(self._failed)

    def lines(self) -> list[str]:
        """One entry for each host that was not reached: the reason, and a command to try by hand."""
        result = []
        for alias, name in self._names.items():
            if alias in self._arrived:
                continue
            result.append(f"host {name} was not reached: {self._why(alias)}")
            result.append(f"  try by hand: {self._shell.by_hand(name)}")
        return result

    def _why(self, alias: str) -> str:
        if alias not in self._failed:
            return "no answer yet"
        lines = [line.strip() for line in str(self._failed[alias].get("words", "")).splitlines() if line.strip()]
        program = self._shell.words("")[0]
        return (
            "; ".join(lines[-3:]) or f"{program} ended with exit code {self._failed[alias].get('code')} and no message"
        )
