"""All data that a worker needs to run its rank. The launcher writes it; the worker beside each rank reads it.

The user's texts (command, environment, directories) are bytes, so that they stay unchanged. Workers of this host read a
file that only this user can read. To another host it is sent through ssh, and stays in the memory of the agent there
(agent.py). If another program starts the ranks, such as Slurm, it is in environment variables. It is never on a command
line, which all users can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping

from sirtaki import starters
from sirtaki.host.cores import allowed
from sirtaki.job.protocol.time_limits import GRACE, LOST_AFTER

VARIABLE = "SIRTAKI_LAUNCH_SPEC"
RESTART_VARIABLE = "SIRTAKI_RESTART_COUNT"
BY_ENVIRONMENT = "-"  # instead of the file's name
_PIECE = 100_000  # bytes: Linux limits one environment variable to 128 KiB


class Spec:
    """One job, as its workers need it.

    size: number of ranks. command, environ, cwd: of the user's program. directory: the job's private one on the
    launcher's host ("" elsewhere), which holds the socket. endpoints, token: to reach the launcher by TCP, as (address,
    port). output: a directory for files of each rank's output, or b"". threads: variables that get each local rank's
    number of cores. binds: whether each rank gets its own cores. grace: seconds from the request to end until SIGKILL.
    lost_after: seconds of silence until the launcher's host counts as lost, 0 for never. restart: how often the job was
    started anew. address: if the launcher itself starts the ranks, where they accept connections of other ranks; "" for
    the address by which their host reaches the launcher. None if another program starts them.
    """

    def __init__(self, *, size: int, command: list[bytes], environ: dict[bytes, bytes], cwd: bytes) -> None:
        self.size = size
        self.command = command
        self.environ = environ
        self.cwd = cwd
        self.directory = ""
        self.endpoints: list[tuple[str, int]] = []
        self.token = b""
        self.output = b""
        self.threads: list[str] = []
        self.binds = False
        self.grace = GRACE
        self.lost_after = LOST_AFTER
        self.restart = 0
        self.address: str | None = None

    def socket_path(self) -> str:
        return os.path.join(self.directory, "socket")

    def to_bytes(self) -> bytes:
        fields = dict(vars(self))
        fields["command"] = [_text(word) for word in self.command]
        fields["environ"] = [[_text(name), _text(value)] for name, value in self.environ.items()]
        for name in ("cwd", "token", "output"):
            fields[name] = _text(fields[name])
        return json.dumps(fields).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Spec:
        fields = json.loads(data)
        spec = Spec(
            size=fields.pop("size"),
            command=[_bytes(word) for word in fields.pop("command")],
            environ={_bytes(name): _bytes(value) for name, value in fields.pop("environ")},
            cwd=_bytes(fields.pop("cwd")),
        )
        for name in ("token", "output"):
            fields[name] = _bytes(fields[name])
        vars(spec).update(fields)
        return spec


def write_to_environment(spec: Spec, environ: MutableMapping[str, str]) -> list[str]:
    """Adds the spec to these variables. Returns their names, for an mpiexec that must pass them on by name."""
    import base64
    import zlib

    text = base64.b64encode(zlib.compress(spec.to_bytes())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    names = [VARIABLE if not number else f"{VARIABLE}_{number}" for number in range(len(pieces))]
    environ.update(zip(names, pieces, strict=True))
    return names


def read(argument: str) -> Spec:
    """Reads the spec from the file of this name or, for `BY_ENVIRONMENT`, from this process's environment."""
    text = os.environ.get(VARIABLE, "")
    if argument == BY_ENVIRONMENT and not text:
        raise KeyError(f"{VARIABLE} is not set: this mpiexec does not pass the environment to the ranks")
    file_name = text if argument == BY_ENVIRONMENT else argument
    if file_name.startswith("/"):
        with open(file_name, "rb") as file:
            return Spec.from_bytes(file.read())
    import base64
    import zlib

    number = 1
    while piece := os.environ.get(f"{VARIABLE}_{number}"):
        text += piece
        number += 1
    return Spec.from_bytes(zlib.decompress(base64.b64decode(text)))


def rank_from(environ: Mapping[str, str]) -> int:
    """This process's rank according to its starter. KeyError if unknown."""
    rank = starters.announced_rank(environ)
    if rank is None:
        names = ", ".join(starters.RANK_VARIABLES)
        raise KeyError(f"none of {names} is set: this mpiexec gives a process no variable with its rank")
    return rank


def program_environment(spec: Spec, arrived: Mapping[bytes, bytes], cores: int) -> dict[bytes, bytes]:
    """The environment of the user's program: the launcher's, with the starter's variables for this rank."""
    result = dict(spec.environ)
    names = {os.fsdecode(name): os.fsdecode(value) for name, value in arrived.items()}
    result |= {os.fsencode(name): os.fsencode(names[name]) for name in names if name.startswith(starters.PREFIXES)}
    ranks = starters.announced_local_size(names) or spec.size
    if ranks > 1 or cores < allowed():  # a single rank keeps its libraries' defaults, which ignore quotas
        for name in spec.threads:
            result[name.encode()] = b"%d" % max(1, cores // ranks)
    result[starters.STARTED_AS.encode()] = starters.started_as(names).encode()
    result[b"SIRTAKI_SIZE"] = b"%d" % spec.size  # init checks it: another size means another MPI's job
    result[RESTART_VARIABLE.encode()] = b"%d" % spec.restart
    return result


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
