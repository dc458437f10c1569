"""Several hosts on one machine: a network, name, /dev/shm and sshd of their own, joined by a switch (Linux namespaces).

Each lives as long as a process that sleeps in it and that the kernel kills together with this one; the switch is a
bridge in a namespace of its own. So nothing of it is ever seen outside, and nothing is left behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from killing import kill_all
from ssh_words import READ_WORDS

_SSHD = shutil.which("ssh") and shutil.which("ssh-keygen") and shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
_SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
ClientAliveInterval 1
ClientAliveCountMax 4
MaxStartups 100
"""
_SSH_CONFIG = """\
Host *
  IdentityFile {folder}/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
# Where there is no sshd. What follows the host's name is a command for the shell there.
_STAND_IN = """\
enter = ["nsenter", "--target", str(hosts[words[0]]), "--net", "--uts", "--mount", "/bin/sh", "-c"]
environ = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": "/"}
os.execvpe("nsenter", [*enter, " ".join(words[1:])], environ)
"""
_PREPARE = """\
mount --make-rprivate / && mount -t tmpfs none /dev/shm && mount --bind {folder}/hosts.{name} /etc/hosts &&
if [ -d /etc/ssh/ssh_config.d ]; then mount --bind {folder}/ssh_config.d /etc/ssh/ssh_config.d; fi &&
for file in "$HOME/.bashrc" "$HOME/.profile"; do if [ -f "$file" ]; then mount --bind /dev/null "$file"; fi; done &&
if [ -d /run ]; then mount -t tmpfs none /run && mkdir /run/sshd; fi &&
hostname {name} && ip link set lo up && echo ready && exec sleep 1000000
"""


class Namespaces:
    """names: of the hosts; the launcher belongs on the first. Raises OSError where this is not permitted."""

    kind = "namespaces"
    flags: tuple[str, ...] = ()

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._folder = folder
        self._sleepers: dict[str, subprocess.Popen[str]] = {}
        self._sshds: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        return f"10.77.0.{self.names.index(name) + 1}"

    def enter(self, name: str) -> list[str]:
        """Words in front of a command that runs on that host."""
        return _enter(self._sleepers[name])

    def environment(self) -> dict[str, str]:
        """What a launcher on the first host needs in its environment."""
        return {} if _SSHD else {"PATH": f"{self._folder}/bin:{os.environ['PATH']}"}

    def cut(self, name: str) -> None:
        """Takes the host off the network, without a word to anybody."""
        self._switch("ip", "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        self._switch("ip", "link", "set", f"to-{name}", "up")

    def delay(self, name: str, time: str) -> str:
        """Makes each packet to the host late by that time, as "20ms"; "" for none. Returns why not, where it cannot."""
        words = (
            ["add", "dev", f"to-{name}", "root", "netem", "delay", time]
            if time
            else ["del", "dev", f"to-{name}", "root"]
        )
        try:
            self._switch("tc", "qdisc", *words)
        except OSError as error:
            return str(error)
        return ""

    def limit(self, name: str, rate: str) -> str:
        """Limits the link to the host to that rate, as "100mbit"; "" for none. Returns why not, where it cannot."""
        bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        words = ["add", "dev", f"to-{name}", "root", *bucket] if rate else ["del", "dev", f"to-{name}", "root"]
        try:
            self._switch("tc", "qdisc", *words)
        except OSError as error:
            return str(error)
        return ""

    def kill(self, name: str) -> None:
        """Kills all that runs on the host."""
        kill_all(lambda: self.processes(name))

    def processes(self, name: str) -> list[int]:
        """What runs on the host, beyond what makes it one."""
        own = os.stat(f"/proc/{self._sleepers[name].pid}/ns/net").st_ino
        fixed = {process.pid for process in (*self._sleepers.values(), *self._sshds.values())}
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with suppress(OSError):
                if pid not in fixed and os.stat(f"/proc/{pid}/ns/net").st_ino == own and not _is_dead(pid):
                    found.append(pid)
        return found

    def remove_segments(self) -> list[str]:
        """Empties /dev/shm of each host; returns what was there."""
        found = []
        for name in self.names:
            for path in Path(f"/proc/{self._sleepers[name].pid}/root/dev/shm").iterdir():
                path.unlink()
                found.append(f"{name}: {path.name}")
        return found

    def close(self) -> None:
        for name in self.names:
            if name in self._sleepers:
                self.kill(name)
        for process in (*self._sshds.values(), *self._sleepers.values()):
            process.kill()
            process.communicate()

    # ---- making ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        self._write_files()
        for name in ("switch", *self.names):
            self._sleepers[name] = self._sleeper(name)
        self._switch("ip", "link", "add", "bridge", "type", "bridge")
        self._switch("ip", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names, 1):
            end = str(self._sleepers[name].pid)
            self._switch("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", end)
            self._switch("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
            _run(*self.enter(name), "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run(*self.enter(name), "ip", "address", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
            _run(*self.enter(name), "ip", "link", "set", "eth0", "up")
        if not _SSHD:
            self._write_stand_in()
        else:
            for name in self.names:
                words = (*self.enter(name), _SSHD, "-D", "-f", f"{self._folder}/sshd_config")
                self._sshds[name] = subprocess.Popen(words, preexec_fn=_die_with_parent, stderr=subprocess.DEVNULL)
            for name in self.names:
                self._wait_for_sshd(name)

    def _write_files(self) -> None:
        folder = self._folder
        for name in ("ssh_config.d", "bin"):
            (folder / name).mkdir(parents=True)
        for name in (*self.names, "switch"):
            # As Debian has it: a host's own name is a loopback address there.
            lines = ["127.0.0.1 localhost", "::1 localhost6", f"127.0.1.1 {name}"]
            lines += [f"{self.address(other)} {other}" for other in self.names if other != name]
            lines += [f"fd77::{number} {other}-6" for number, other in enumerate(self.names, 1)]
            (folder / f"hosts.{name}").write_text("\n".join(lines) + "\n")
        if _SSHD:
            (folder / "ssh_config.d" / "bench.conf").write_text(_SSH_CONFIG.format(folder=folder))
            (folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=folder))
            for key in ("key", "host_key"):
                _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))

    def _write_stand_in(self) -> None:
        processes = {name: self._sleepers[name].pid for name in self.names}
        processes |= {f"fd77::{number}": processes[name] for number, name in enumerate(self.names, 1)}
        ssh = self._folder / "bin" / "ssh"
        ssh.write_text(READ_WORDS.format(python=sys.executable, hosts=processes) + _STAND_IN)
        ssh.chmod(0o755)

    def _sleeper(self, name: str) -> subprocess.Popen[str]:
        script = _PREPARE.format(folder=self._folder, name=name)
        words = ["unshare", "--net", "--uts", "--mount", "/bin/sh", "-c", script]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(words, text=True, preexec_fn=_die_with_parent, **pipes)  # type: ignore[call-overload]
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != "ready\n":
            raise OSError(f"namespaces are not permitted here: {line.strip()}")
        return process

    def _wait_for_sshd(self, name: str) -> None:
        deadline = time.monotonic() + 20
        probe = "import socket; socket.create_connection(('localhost', 22), 1)"
        while subprocess.run([*self.enter(name), sys.executable, "-c", probe], capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise OSError(f"sshd on {name} does not answer")
            time.sleep(0.05)

    def _switch(self, *words: str) -> None:
        _run(*_enter(self._sleepers["switch"]), *words)


def _enter(sleeper: subprocess.Popen[str]) -> list[str]:
    return ["nsenter", f"--target={sleeper.pid}", "--net", "--uts", "--mount", f"--wd={os.getcwd()}"]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"namespaces: {' '.join(words)}: {done.stderr.strip()}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _is_dead(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
