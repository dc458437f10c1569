"""What a worker must know to run its rank: written by the launcher, read beside each rank.

All text that belongs to the user (command, environment, directories) is bytes, so that nothing is lost on the way.
For workers on this host it lies in a file that only this user can read; to other hosts it travels through ssh and lies
in memory of the agent there (agent.py). Where somebody else starts the ranks, as Slurm does, it travels in environment
variables. It is never on a command line: those can be read by everyone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping

VARIABLE = "SIRTAKI_LAUNCH_SPEC"
BY_ENVIRONMENT = "-"  # in place of the file's name
LOST_AFTER = 30.0  # seconds
_PIECE = 100_000  # bytes: Linux limits one environment variable to 128 KiB

# An mpiexec tells each rank who it is by variables with these names, and a scheduler gives it its devices; for these
# the value that arrives with the rank counts, for all others the launcher's.
RANK_PREFIXES = (
    *(b"PMI_", b"PMIX_", b"OMPI_", b"PRTE_", b"ORTE_", b"HYDI_", b"MPI_LOCAL", b"MPIR_CVAR_CH3_INTERFACE_HOSTNAME"),
    *(b"SLURM_", b"PALS_", b"FLUX_", b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES", b"ZE_AFFINITY_MASK"),
    *(b"SIRTAKI_HOSTNAME", b"HOROVOD_HOSTNAME"),  # set by the host itself
    *(b"GPU_DEVICE_ORDINAL", b"IPATH_NO_BACKTRACE", b"HFI_NO_BACKTRACE"),
)
_RANK = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class Spec:
    """One job, as its workers see it.

    size: ranks. command, environ, cwd: of the user's program. directory: the job's private one on the launcher's host
    ("" elsewhere), with the socket in it. endpoints, token: how to reach the launcher by TCP, as (address, port).
    output: a directory for files of each rank's output, or b"". threads: variables that get the number of cores for
    each local rank. grace: seconds from the request to end until SIGKILL. lost_after: seconds without a sign of life
    until the launcher's host counts as lost, 0 for never.
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
        self.grace = 2.5
        self.lost_after = LOST_AFTER

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
    """Adds the spec to these variables; returns the names, for an mpiexec that must be told what to pass on."""
    import base64
    import zlib

    text = base64.b64encode(zlib.compress(spec.to_bytes())).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    names = [VARIABLE if not number else f"{VARIABLE}_{number}" for number in range(len(pieces))]
    environ.update(zip(names, pieces, strict=True))
    return names


def read(argument: str) -> Spec:
    """The spec in the file of that name, or, for `BY_ENVIRONMENT`, where this process's environment says."""
    text = os.environ.get(VARIABLE, "")
    if argument == BY_ENVIRONMENT and not text:
        raise KeyError(f"{VARIABLE} did not arrive: this mpiexec does not pass the environment on")
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
    """This process's rank, as its mpiexec says. Raises KeyError when it says nothing."""
    for name in _RANK:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    raise KeyError(f"none of {', '.join(_RANK)} is set: this mpiexec does not tell a process its rank")


def local_size_from(environ: Mapping[str, str], otherwise: int) -> int:
    """How many ranks run on this host, as the mpiexec says."""
    for name in _LOCAL_SIZE:
        if environ.get(name, "").isdigit():
            return max(1, int(environ[name]))
    if "SLURM_STEP_TASKS_PER_NODE" in environ and environ.get("SLURM_NODEID", "").isdigit():
        counts = _slurm_counts(environ["SLURM_STEP_TASKS_PER_NODE"])
        node = int(environ["SLURM_NODEID"])
        if node < len(counts):
            return max(1, counts[node])
    return max(1, otherwise)


def program_environment(spec: Spec, arrived: Mapping[bytes, bytes], cores: int) -> dict[bytes, bytes]:
    """The environment of the user's program on this rank: the launcher's, with what says who this rank is."""
    result = dict(spec.environ)
    for name, value in arrived.items():
        if name.startswith(RANK_PREFIXES):
            result[name] = value
    names = {os.fsdecode(name): os.fsdecode(value) for name, value in arrived.items()}
    ranks = local_size_from(names, spec.size)
    if ranks > 1:  # a rank alone on its host keeps its libraries' own defaults
        for variable in spec.threads:
            result[variable.encode()] = b"%d" % max(1, cores // ranks)
    result[b"SIRTAKI_SIZE"] = b"%d" % spec.size  # what init must find, else it is another MPI's job
    return result


def _slurm_counts(text: str) -> list[int]:
    """Tasks of each node: "2(x3),1" means 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        number, _, times = part.rstrip(")").partition("(x")
        if number.isdigit():
            counts += [int(number)] * (int(times) if times.isdigit() else 1)
    return counts


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
