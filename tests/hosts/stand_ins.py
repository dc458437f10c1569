"""Several hosts on one machine where namespaces are not permitted: a program `ssh` that runs the command here.

It runs in an environment of its own, with a name and temporary files of its own, and where that is permitted with a
/dev/shm of its own. The launcher is on none of these hosts. All share one network, so links cannot be cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from killing import kill_all
from ssh_words import READ_WORDS

_SSH = """\
environ = {{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "SIRTAKI_HOSTNAME": words[0]}}
environ.update(TMPDIR={folder!r} + "/" + words[0], SIRTAKI_TEST_HOSTS={folder!r})
shell = ["/bin/sh", "-c", {prepare!r} + " ".join(words[1:])]
os.execve(*(["/usr/bin/unshare", ["unshare", "--mount", *shell]] if {prepare!r} else [shell[0], shell]), environ)
"""
_OWN_SHM = "mount -t tmpfs none /dev/shm && "


class StandIns:
    kind = "stand-ins"
    flags: tuple[str, ...] = ("--network-interfaces", "lo")

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._folder = folder
        for name in (*names, "bin"):
            (folder / name).mkdir(parents=True)
        ssh = folder / "bin" / "ssh"
        private = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", f"{_OWN_SHM} true"], capture_output=True)
        prepare = "" if private.returncode else _OWN_SHM
        ssh.write_text(
            READ_WORDS.format(python=sys.executable, hosts=self.names)
            + _SSH.format(folder=str(folder), prepare=prepare)
        )
        ssh.chmod(0o755)

    def enter(self, name: str) -> list[str]:
        """Words in front of a launcher's command: it runs here."""
        return []

    def environment(self) -> dict[str, str]:
        path = f"{self._folder}/bin:{os.environ['PATH']}"
        return {"PATH": path, "SIRTAKI_TEST_HOSTS": str(self._folder)}

    def kill(self, name: str) -> None:
        """Kills all that runs on the host."""
        kill_all(lambda: self.processes(name))

    def processes(self, name: str) -> list[int]:
        """What was started through ssh and lives."""
        marks = {f"SIRTAKI_TEST_HOSTS={self._folder}".encode(), f"SIRTAKI_HOSTNAME={name}".encode()}
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with suppress(OSError):
                if marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    found.append(pid)
        return found

    def remove_segments(self) -> list[str]:
        """What is in /dev/shm of a host is gone with its last process, or shared with other programs."""
        return []

    def close(self) -> None:
        for name in self.names:
            self.kill(name)
