"""How torch.distributed over Sirtaki starts: under mpiexec, sirtakirun and torchrun; where torch finds the backend."""

import os
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist
from ranks import ranks

import sirtaki.torch as hvd

PROGRAM = """
import sys, torch, torch.distributed as dist
{before}
dist.init_process_group("sirtaki")
total = torch.ones(2) * (dist.get_rank() + 1)
dist.all_reduce(total)
{after}
print(f"rank {{dist.get_rank()}} of {{dist.get_world_size()}}: {{total.tolist()}}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def check(output: str, count: int) -> None:
    total = float(sum(range(1, count + 1)))
    for rank in range(count):
        assert f"rank {rank} of {count}: {[total, total]}\n" in output, output


def launched(words: list[str], folder: Path, program: str, **extra: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(program)
    environment = jobs.environment(extra)
    return subprocess.run(
        [sys.executable, "-m", *words, str(script)], env=environment, capture_output=True, text=True, timeout=100
    )


def test_under_mpiexec_without_variables() -> None:
    ended = jobs.run_script(2, PROGRAM.format(before="import sirtaki.torch", after=""), 100)
    assert ended.code == 0, ended.output
    check(ended.output, 2)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_under_torchrun(count: int, tmp_path: Path) -> None:
    """No mpiexec: MPI starts through torch's store, and all memory is shared."""
    after = "from sirtaki.native import core; assert list(core.plane_uses()) == ['shm'], core.plane_uses()"
    program = PROGRAM.format(before="import sirtaki.torch", after=after)
    done = launched(["torch.distributed.run", f"--nproc-per-node={count}"], tmp_path, program)
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, count)


def test_by_the_entry_point_of_an_installed_sirtaki(tmp_path: Path) -> None:
    """torch loads it; the program imports nothing of Sirtaki's."""
    metadata = tmp_path / "sirtaki-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sirtaki\nVersion: 0\n")
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    _, _, after = project.partition('[project.entry-points."torch.backends"]\n')
    name, _, value = after.partition("\n")[0].partition(" = ")
    (metadata / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {value.strip(chr(34))}\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = launched(
        ["sirtaki", "-np", "2", sys.executable],
        tmp_path,
        PROGRAM.format(before="assert 'sirtaki.torch' not in sys.modules", after=""),
        PYTHONPATH=path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, 2)


@ranks(2)
def test_ranks_that_differ_are_refused(rank_count) -> None:
    store = dist.HashStore()
    with pytest.raises(ValueError, match=r"as rank \d of 2 .* but it is rank \d of 2 in Sirtaki's job"):
        dist.init_process_group("sirtaki", store=store, rank=1 - hvd.rank(), world_size=2)
