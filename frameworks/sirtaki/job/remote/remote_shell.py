"""Replaces ssh for the MPI's mpiexec: runs once for each other host, and starts our agent there by the real ssh.

`remote_hosts.py` writes to the job's private directory how each host is reached and what its agent reads. If a host is
not reached, this script reports the reason to the launcher, which then ends the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from sirtaki.host import processes
from sirtaki.job.protocol import channel
from sirtaki.job.remote import agent

_KEPT_WORDS = 4000  # last bytes of ssh's output


def main(directory: str, arguments: Sequence[str]) -> int:
    """arguments: options for ssh (ignored: the launcher chooses them), the host, and the command for its shell."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        del words[0]
    with open(os.path.join(directory, "remote"), "rb") as file:
        plan = json.load(file)
    host, command = words[0], " ".join(words[1:])
    with open(os.path.join(directory, "remote-spec"), "rb") as file:
        orders = agent.order(host, command, file.read())
    environ = {name.encode("latin-1"): value.encode("latin-1") for name, value in plan["environ"]}
    signal.signal(signal.SIGTERM, _leave)
    try:
        code, errors = _run(plan["hosts"][host], environ, orders)
        if code:
            _report(directory, {"host": host, "code": code, "words": errors.decode(errors="replace")})
        return code
    finally:
        _remove_without_launcher(directory)


def _run(command: Sequence[str], environ: dict[bytes, bytes], orders: bytes) -> tuple[int, bytes]:
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: processes.die_with_parent(signal.SIGTERM, parent),
        )
    except OSError as error:
        return 127, str(error).encode()
    assert process.stdin is not None
    errors = bytearray()
    reader = threading.Thread(target=_copy_stderr, args=(process, errors), daemon=True)
    reader.start()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(orders)
        process.stdin.flush()
    code = process.wait()  # stdin stays open until then: its end makes the agent end the job
    reader.join(1)
    return (code if code >= 0 else 128 - code), bytes(errors)


def _copy_stderr(process: subprocess.Popen[bytes], errors: bytearray) -> None:
    assert process.stderr is not None
    while data := os.read(process.stderr.fileno(), 4096):
        errors += data
        del errors[:-_KEPT_WORDS]
        os.write(sys.stderr.fileno(), data)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _remove_without_launcher(directory: str) -> None:
    """After kill -9 of the launcher, perhaps no other process of this host is left to remove the directory."""
    try:
        channel.connect_local(os.path.join(directory, "socket")).close()
    except ConnectionRefusedError:
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:  # it is removed already
        return


def _report(directory: str, message: dict[str, object]) -> None:
    """Sends to the launcher, which ends the job; or which closes the connection at once if the host was reached."""
    with contextlib.suppress(OSError):
        connection = channel.connect_local(os.path.join(directory, "socket"))
        connection.sendall(channel.frame(channel.HOST, json.dumps(message).encode()))
        connection.recv(1)  # until then mpiexec waits for this host
