"""Who may include or import whom, and who may read the environment; run by ./dev lint.

A room may use the rooms that its line names, and each of those stands above it, so there is no circle. A file belongs
to the deepest room that holds it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]

BELOW_PLANES = ("base", "memory", "loader", "math", "device", "mpi", "sleep", "transport", "host", "sockets")
PLANES = ("plane", "plane/shm", "plane/mpi", "plane/nccl", "plane/gpu")
STATIONS = ("queue", "agreement", "fusion", "coordinator", "execution", "locked_plan", "watch", "send_receive")

CPP = {  # rooms in collectives/, the lowest first
    "base": (),
    "memory": (),
    "loader": ("base",),
    "math": ("base",),
    "device": ("base", "loader", "math"),
    "observer": ("base", "device"),
    "recorder": ("base", "observer"),
    "mpi": ("base", "loader"),
    "sleep": ("base",),
    "transport": ("base", "mpi"),
    "host": ("base", "sleep", "transport"),
    "authentication": ("base",),
    "sockets": ("base", "memory", "authentication", "sleep", "transport", "host"),
    "plane": ("base", "memory", "observer", "math", "device", "transport"),
    "plane/shm": ("base", "memory", "math", "transport", "host", "plane"),
    "plane/mpi": ("base", "memory", "math", "mpi", "transport", "plane"),
    "plane/nccl": ("base", "loader", "math", "device", "mpi", "sleep", "transport", "plane"),
    "plane/gpu": ("base", "math", "device", "mpi", "transport", "plane", "plane/mpi", "plane/nccl"),
    "fabric": (*BELOW_PLANES, *PLANES),
    "queue": ("base", "memory", "observer", "device", "sleep"),
    "agreement": ("base", "observer", "queue"),
    "fusion": ("base",),
    "coordinator": ("base", "observer", "agreement", "fusion"),
    "execution": ("base", "observer", "math", "plane", "queue", "agreement", "fusion"),
    "locked_plan": ("base", "observer", "fabric", "queue", "agreement", "execution"),
    "watch": ("base", "observer", "agreement", "coordinator"),
    "send_receive": ("base", "sleep", "transport", "host", "queue", "agreement", "execution"),
    "engine": (*BELOW_PLANES, "observer", "fabric", *STATIONS),
}

JOB = tuple(f"sirtaki/job/{room}" for room in ("protocol", "remote", "supervisor", "launcher", "elastic"))
TORCH = tuple(f"sirtaki/torch/{room}" for room in ("compression", "ops", "collectives", "gradients", "sharding"))
TENSORFLOW = tuple(
    f"sirtaki/tensorflow/{room}"
    for room in ("compression", "ops", "collectives", "gradients", "functions", "parameter_check")
)
PYTHON = {  # packages in frameworks/, and modules that stand below their package; the lowest first
    "sirtaki/host": (),
    "sirtaki/starters": ("sirtaki/host",),
    "sirtaki/timing/text": (),
    "sirtaki/timeline/steps": (),
    # With checks, elastic, job/rank, rendezvous, libraries and timing.
    "sirtaki": ("sirtaki/host", "sirtaki/starters", "sirtaki/timing/text", "sirtaki/timeline/steps"),
    "sirtaki/job/protocol": ("sirtaki/host", "sirtaki/starters"),
    "sirtaki/launch/command_line": ("sirtaki/starters", "sirtaki/timeline/steps", "sirtaki/job/protocol"),
    "sirtaki/job/remote": ("sirtaki/host", "sirtaki/starters", "sirtaki/job/protocol"),
    "sirtaki/job/supervisor": ("sirtaki/host", "sirtaki/starters", "sirtaki/job/protocol"),
    "sirtaki/job/launcher": (
        "sirtaki/host",
        "sirtaki/starters",
        "sirtaki/timing/text",
        "sirtaki/job/protocol",
        "sirtaki/job/remote",
    ),
    "sirtaki/job/elastic": (
        "sirtaki/host",
        "sirtaki/starters",
        "sirtaki/launch/command_line",
        *(f"sirtaki/job/{room}" for room in ("protocol", "remote", "launcher")),
    ),
    "sirtaki/launch": ("sirtaki/host", "sirtaki/starters", "sirtaki", "sirtaki/launch/command_line", *JOB),
    "sirtaki/torch/compression": ("sirtaki",),
    "sirtaki/torch/ops": ("sirtaki",),
    "sirtaki/torch/collectives": ("sirtaki", *TORCH[:2]),
    "sirtaki/torch/gradients": ("sirtaki", *TORCH[:3]),
    "sirtaki/torch/sharding": ("sirtaki", *TORCH[:4]),
    "sirtaki/torch/process_group": ("sirtaki", "sirtaki/starters", "sirtaki/torch/ops"),
    "sirtaki/torch_backend": ("sirtaki", "sirtaki/torch/process_group"),
    "sirtaki/torch": ("sirtaki", *TORCH, "sirtaki/torch_backend"),
    "sirtaki/tensorflow/compression": ("sirtaki",),
    "sirtaki/tensorflow/ops": ("sirtaki",),
    "sirtaki/tensorflow/collectives": ("sirtaki", *TENSORFLOW[:2]),
    "sirtaki/tensorflow/gradients": ("sirtaki", *TENSORFLOW[:3]),
    "sirtaki/tensorflow/functions": ("sirtaki", *TENSORFLOW[:3]),
    "sirtaki/tensorflow/parameter_check": ("sirtaki", *TENSORFLOW[:3]),
    "sirtaki/keras": ("sirtaki", "sirtaki/torch", *TORCH, *TENSORFLOW),
    "sirtaki/tensorflow": ("sirtaki", *TENSORFLOW, "sirtaki/keras"),
    "sirtaki/tensorflow/keras": ("sirtaki", "sirtaki/keras"),
}

# Arrows that are still to go: the file, and the room that it should not use.
KNOWN: set[tuple[str, str]] = set()

# Only these read the environment. A setting that decides how ranks act together must come from one of them.
ENVIRONMENT = {
    "collectives/base/settings.cc",
    "bindings/tensorflow/kernels.cc",
    "frameworks/horovod_shim/horovod/_shim/util.py",
    "frameworks/sirtaki/job/rank/children.py",
    "frameworks/sirtaki/keras/generations/__init__.py",
    "frameworks/sirtaki/libraries/mpi_library.py",
    *(f"frameworks/sirtaki/rendezvous/{name}.py" for name in ("environment", "launcher", "store")),
    "frameworks/sirtaki/runtime.py",
    "frameworks/sirtaki/settings.py",
    "frameworks/sirtaki/torch_backend.py",
    *(f"frameworks/sirtaki/torch/process_group/{name}.py" for name in ("pmi_server", "rendezvous")),
    "frameworks/sirtaki/libraries/mpi_settings.py",
    "frameworks/sirtaki/job/rank/starter_socket.py",
    "frameworks/sirtaki/starters/__init__.py",
    "frameworks/sirtaki/job/rank/supervisor_link.py",
    *(
        f"frameworks/sirtaki/launch/{name}.py"
        for name in ("check", "command", "function_job", "job_start", "starter_choice")
    ),
    *(f"frameworks/sirtaki/launch/command_line/{name}.py" for name in ("options", "elastic_options")),
    *(f"frameworks/sirtaki/job/protocol/{name}.py" for name in ("channel", "spec")),
    "frameworks/sirtaki/job/remote/agent.py",
    *(f"frameworks/sirtaki/job/supervisor/{name}.py" for name in ("program", "worker")),
}
READS = re.compile(r"\bgetenv\(|\bos\.(?:environb?|getenv)\b")


def files(room: str, *suffixes: str) -> list[Path]:
    return sorted(file for file in (TOP / room).rglob("*") if file.suffix in suffixes)


def room_of(path: str, rooms: dict[str, tuple[str, ...]]) -> str:
    """The deepest room that holds the path; "" if none does."""
    return max((room for room in rooms if path.startswith(f"{room}/")), key=len, default="")


def includes(file: Path) -> list[str]:
    names = re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)
    return [name for name in names if (TOP / "collectives" / name).exists()]


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.replace(".", "/") for name in names)


def arrows() -> Iterator[tuple[Path, str, str, tuple[str, ...]]]:
    """(file, its room, the room that it uses, the rooms that it may use)."""
    for file in files("collectives", ".cc", ".h"):
        room = room_of(str(file.relative_to(TOP / "collectives")), CPP)
        yield from ((file, room, room_of(name, CPP), CPP.get(room, ())) for name in includes(file))
    for file in files("frameworks/sirtaki", ".py"):
        room = room_of(f"{file.relative_to(TOP / 'frameworks').with_suffix('')}/", PYTHON)
        for name in imports(file):
            if name.startswith("sirtaki/"):
                yield file, room, room_of(f"{name}/", PYTHON), PYTHON.get(room, ())


def complaints() -> Iterator[str]:
    for rooms in (CPP, PYTHON):
        order = list(rooms)
        for room, used in rooms.items():
            yield from (
                f"the table: {room} uses {one}, which does not stand above it"
                for one in used
                if one not in order[: order.index(room)]
            )
    met = set()
    for file, room, used, allowed in arrows():
        name = str(file.relative_to(TOP))
        if used == room or used in allowed:
            continue
        if (name, used) in KNOWN:
            met.add((name, used))
        else:
            yield f"{name}: room {room!r} must not use room {used!r}"
    yield from (f"{name} no longer uses {used!r}: remove it from KNOWN" for name, used in sorted(KNOWN - met))
    for file in (*files("collectives", ".cc", ".h"), *files("bindings", ".cc", ".h"), *files("frameworks", ".py")):
        name = str(file.relative_to(TOP))
        if name not in ENVIRONMENT and READS.search(file.read_text()):
            yield f"{name}: reads the environment; see ENVIRONMENT in tests/lint/layers.py"


if __name__ == "__main__":
    found = sorted(set(complaints()))
    print("\n".join(found) or "layers: no arrow points upward")
    sys.exit(bool(found))
