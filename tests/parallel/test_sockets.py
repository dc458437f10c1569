"""Jobs without MPI: plain processes that find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from sirtaki import runtime

_LIMIT = 60
_HEAD = """
import sys
import torch
import sirtaki.torch as hvd
"""
# Without MPI in the process: neither loaded nor needed by anything that follows init().
_TRAINS = (
    _HEAD
    + """
hvd.init()
rank, size = hvd.rank(), hvd.size()
for elements in (1, 1 << 20):
    assert (hvd.allreduce(torch.full((elements,), float(rank)), op=hvd.Sum) == size * (size - 1) / 2).all()
gathered = hvd.allgather(torch.full((rank + 1,), float(rank)))
assert gathered.tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
assert hvd.broadcast_object({"a": rank}, 0) == {"a": 0}
torch.manual_seed(rank)
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
weights = hvd.allgather(model.weight.detach())
assert (weights == weights[:1]).all()
assert not any("libmpi" in line for line in open("/proc/self/maps"))
assert not hvd.mpi_enabled()
shape = hvd.local_size(), hvd.cross_size()
hvd.shutdown()
hvd.init()  # a new job of the same processes
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
print("done", rank, size, *shape)
"""
)
_LOSES_A_RANK = """
import os, signal, time
import sirtaki
from sirtaki.native import core
def meet():
    core.submit(core.VERBS["barrier"], "b", [], site="program.py:1").wait()
sirtaki.init()
meet()
if sirtaki.rank() == 1:
    child = os.fork()  # as a data loader's worker: it must not keep the rank's connections open
    if child == 0:
        os.closerange(0, 3)
        time.sleep(120)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
meet()
"""


def _free_port(host: str = "127.0.0.1") -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        return server.getsockname()[1]


def _start(program: str, rank: int, size: int, port: int, **variables: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SIRTAKI_", "HOROVOD_"))}
    environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environ |= {"SIRTAKI_CONTROL": "sockets", "OMP_NUM_THREADS": "1"} | variables
    environ = {name: value for name, value in environ.items() if value}
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ends(jobs: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of each."""
    found = []
    try:
        for job in jobs:
            out, errors = job.communicate(timeout=_LIMIT)
            found.append((job.returncode, out, errors))
    finally:
        for job in jobs:
            job.kill()
    return found


def _host_of(rank: int) -> dict[str, str]:
    return {"SIRTAKI_HOSTNAME": f"host{rank}"}


def test_processes_train_without_mpi() -> None:
    """Two on one host, and one on another: through shared memory and through sockets."""
    port = _free_port()
    jobs = [_start(_TRAINS, rank, 3, port, SIRTAKI_SECRET="x", **_host_of(rank // 2)) for rank in range(3)]
    ends = _ends(jobs)
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    assert [out.split() for _, out, _ in ends] == [
        ["done", "0", "3", "2", "2"],
        ["done", "1", "3", "2", "1"],
        ["done", "2", "3", "1", "2"],
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.long)])
def test_processes_of_one_host_use_shared_memory(address: str) -> None:
    try:
        port = _free_port(address)
    except OSError as error:
        pytest.skip(f"no {address} here: {error}")
    ends = _ends([_start(_TRAINS, rank, 2, port, MASTER_ADDR=address) for rank in range(2)])
    assert [out.split() for _, out, _ in ends] == [["done", str(r), "2", "2", "1"] for r in range(2)], ends


def _variables_of_indexed_job() -> dict[str, str]:
    file = Path(__file__).parents[2] / "examples/cluster/kubernetes-ranks.yaml"
    (job,) = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Job"]
    entries = job["spec"]["template"]["spec"]["containers"][0]["env"]
    return {entry["name"]: entry.get("value", "of the cluster") for entry in entries}


@pytest.mark.parametrize("way", ["kubernetes", "shared file"])
def test_other_ways_to_meet(way: str, tmp_path: Path) -> None:
    """Kubernetes' index in place of RANK; a file, at first an older job's, in place of the address and the port."""
    port, path = _free_port(), tmp_path / "meeting"
    path.write_text(json.dumps({"addresses": ["127.0.0.1"], "port": port, "secret": "00"}))
    jobs = []
    for rank in (1, 0):
        own = _variables_of_indexed_job() | {"RANK": "", "JOB_COMPLETION_INDEX": str(rank), "MASTER_PORT": str(port)}
        assert own.pop("MASTER_ADDR") == "train-0.train"  # here 127.0.0.1
        if way == "shared file":
            own = {"MASTER_ADDR": "", "MASTER_PORT": "", "SIRTAKI_RENDEZVOUS_FILE": str(path)}
        jobs.append(_start(_TRAINS, rank, 2, port, **own, **_host_of(rank)))
    ends = _ends(jobs)
    assert [out.split() for _, out, _ in ends] == [["done", str(rank), "2", "1", "2"] for rank in (1, 0)], ends
    assert way == "kubernetes" or not path.exists()


def test_a_shared_file_without_rank_0_is_named(tmp_path: Path) -> None:
    own = {"SIRTAKI_RENDEZVOUS_FILE": str(tmp_path / "meeting"), "SIRTAKI_START_TIMEOUT": "0.3"}
    ((code, _, errors),) = _ends([_start("import sirtaki\nsirtaki.init()", 1, 2, 1, **own)])
    assert code != 0
    assert "rank 0 was not found by SIRTAKI_RENDEZVOUS_FILE=" in errors and "No such file or directory" in errors


@pytest.mark.long
def test_many_ranks_on_few_cores() -> None:
    """Each is on a host of its own, as it sees it, so all that they exchange goes through TCP."""
    program = """
import os
rank = int(os.environ["HOROVOD_RANK"])
os.environ["SIRTAKI_HOSTNAME"] = f"host{rank}"
import numpy as np
import sirtaki as hvd
from sirtaki import exchange
hvd.init()
weights = np.zeros(1000)
for step in range(20):
    gradients = exchange.allgather_object(np.full(1000, hvd.rank() + step, float), "gradients")
    weights -= sum(gradients) / hvd.size()
assert (weights == -sum(15.5 + step for step in range(20))).all()
print("done", hvd.rank(), hvd.size(), hvd.cross_size(), flush=True)
"""
    command = [sys.executable, "-m", "sirtaki.launch", "-np", "32", "--gloo", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(f"[{r}] done {r} 32 32" for r in range(32)), done.stdout


def test_killed_rank_is_named_on_the_others() -> None:
    port = _free_port()
    ends = _ends([_start(_LOSES_A_RANK, rank, 3, port, **_host_of(rank)) for rank in range(3)])
    os.kill(int(ends[1][1]), signal.SIGKILL)
    assert ends[1][0] == -signal.SIGKILL
    for code, _, errors in (ends[0], ends[2]):
        assert code != 0
        assert "rank 1 on host host1 failed" in errors
        assert "its process has ended without leaving the job" in errors


def test_wrong_secret_and_missing_rank_are_named() -> None:
    """Rank 1 has another secret, and rank 3 never starts."""
    port = _free_port()
    program = "import sirtaki\nsirtaki.init()"
    secrets = {0: "right", 1: "wrong", 2: "right"}
    jobs = [_start(program, r, 4, port, SIRTAKI_SECRET=s, SIRTAKI_START_TIMEOUT="4") for r, s in secrets.items()]
    first, stranger, other = (errors for _, _, errors in _ends(jobs))
    assert "it refused this process, because SIRTAKI_SECRET is not the same on both" in stranger
    for errors in (first, other):
        assert "2 of 4 ranks arrived within 4 s (SIRTAKI_START_TIMEOUT), missing: ranks 1, 3" in errors
        assert "refused a process at 127.0.0.1: it has another SIRTAKI_SECRET" in errors


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "2"}, "RANK=2: WORLD_SIZE=2 has ranks 0 to 1"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x': expected a whole number of at least 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"SIRTAKI_CONTROL": "gloo"}, "SIRTAKI_CONTROL='gloo': expected mpi or sockets"),
        ({"RANK": "1", "SIRTAKI_START_TIMEOUT": "0.3"}, "rank 0 did not answer at MASTER_ADDR=127.0.0.1"),
    ],
)
def test_wrong_variables_are_refused(variables: dict[str, str], message: str) -> None:
    program = "import sirtaki\nsirtaki.init()"
    ((code, _, errors),) = _ends([_start(program, 0, 2, _free_port(), **variables)])
    assert code != 0
    assert message in errors


def test_torchrun_and_its_process_group_need_no_mpi(tmp_path: Path) -> None:
    """torchrun's own store is at MASTER_PORT. First by init() alone, then by torch.distributed."""
    program = tmp_path / "program.py"
    program.write_text(
        _HEAD
        + "import torch.distributed as dist\n"
        + "hvd.init()\n"
        + "assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2\n"
        + "hvd.shutdown()\n"
        + 'dist.init_process_group("sirtaki")\n'
        + "one = torch.ones(1)\n"
        + "dist.all_reduce(one)\n"
        + "assert one.item() == 2\n"
        + "dist.destroy_process_group()\n"
        + 'assert not any("libmpi" in line for line in open("/proc/self/maps"))\n'
        + 'print("done", flush=True)\n'
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={_free_port()}"]
    environ = os.environ | {"SIRTAKI_CONTROL": "sockets", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(program)], env=environ, capture_output=True, text=True, timeout=_LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2


def test_sockets_are_the_default_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIRTAKI_CONTROL", raising=False)
    for found in ([], ["libmpi.so.12"]):
        monkeypatch.setattr(runtime.mpi_library, "candidates", lambda found=found: found)
        assert runtime.uses_sockets() == (not found)
        for chosen in ("mpi", "sockets"):
            monkeypatch.setenv("SIRTAKI_CONTROL", chosen)
            assert runtime.uses_sockets() == (chosen == "sockets")
        monkeypatch.delenv("SIRTAKI_CONTROL")
