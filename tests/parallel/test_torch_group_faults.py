"""torch.distributed over Sirtaki when something goes wrong: each rank ends soon, and says why."""

import subprocess
import sys

import jobs
import pytest
import torch
import torch.distributed as dist
from ranks import ranks
from torch_groups import groups

import sirtaki.torch as hvd

START = """import os, signal, sys, time, torch, torch.distributed as dist, sirtaki.torch
from datetime import timedelta
dist.init_process_group("sirtaki"{options})
rank = dist.get_rank()
try:
    {body}
except BaseException as error:
    print(f"rank {{rank}} got {{type(error).__name__}}: {{error}}", flush=True)
    raise
"""


def program(body, options=""):
    return START.format(body=body.replace("\n", "\n    "), options=options)


def run(count, body, options="", **extra):
    return jobs.run_script(count, program(body, options), 60, extra)


@ranks(2, 3)
def test_calls_that_differ_name_both(rank_count):
    with groups():
        dist.all_reduce(torch.ones(3))
        with pytest.raises(hvd.SirtakiInternalError) as caught:
            if hvd.rank() == 1:
                dist.broadcast(torch.ones(4), 0)
            else:
                dist.all_reduce(torch.ones(3))
        for words in (r"0 +allreduce +Sum .*\(3,\)", r"1 +broadcast .* 0 +\(4,\)", "test_torch_group_faults.py"):
            assert caught.match(f"(?s).*{words}"), str(caught.value)
        with pytest.raises(hvd.SirtakiInternalError, match=r"\(2,\)(?s:.*)\(3,\)"):
            dist.all_reduce(torch.ones(2 if hvd.rank() == 0 else 3))


@ranks(2)
def test_a_destroyed_group_is_refused(rank_count):
    with groups():
        group = dist.group.WORLD
        group.allreduce([torch.ones(1)]).wait()
    with pytest.raises(ValueError, match="destroy_process_group"):
        group.allreduce([torch.ones(1)])
    with groups():  # a new one works
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == rank_count


@ranks(2)
def test_a_future_gets_the_error(rank_count):
    with groups():
        work = dist.all_reduce(torch.ones(hvd.rank() + 1), async_op=True)
        with pytest.raises(RuntimeError, match="The ranks disagree"):
            work.get_future().wait()
        assert work.is_completed() and not work.is_success() and work.exception() is not None


def test_a_killed_rank_ends_every_wait(tmp_path):
    body = """model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(50):
    if rank == 2 and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.01)
"""
    script = tmp_path / "program.py"
    script.write_text(program(body))
    command = [sys.executable, "-m", "sirtaki", "-np", "3", sys.executable, str(script)]
    done = subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    for rank in (0, 1):
        lines = [line for line in done.stdout.splitlines() if f"rank {rank} got RuntimeError: " in line]
        assert lines and "rank 2" in lines[0] and "SIGKILL" in lines[0], done.stdout + done.stderr


def test_the_groups_timeout_names_the_late_rank():
    body = """if rank == 1:
    time.sleep(60)
dist.all_reduce(torch.ones(3))
"""
    ended = run(2, body, ", timeout=timedelta(seconds=3)")
    assert ended.code not in (0, None), ended.output
    assert "rank 0 got SirtakiInternalError" in ended.output and "lacks rank 1" in ended.output, ended.output


def test_the_limit_of_one_wait():
    body = """if rank == 1:
    time.sleep(60)
dist.all_reduce(torch.ones(3), async_op=True).wait(timedelta(seconds=1))
"""
    ended = run(2, body)
    assert ended.code not in (0, None), ended.output
    assert "rank 0 got SirtakiInternalError" in ended.output and "within 1 s" in ended.output, ended.output
    assert "missing" not in ended.output, "the rank that gave up is not the late one"


@ranks(2)
def test_bitwise_operations_and_roots_that_differ(rank_count):
    rank = hvd.rank()
    value = torch.tensor([1 + rank])
    with groups():
        calls = (
            (lambda: dist.all_reduce(value, op=dist.ReduceOp.BAND if rank else dist.ReduceOp.BOR), "op"),
            (lambda: dist.gather(value, [torch.empty_like(value) for _ in range(2)], dst=rank), "root rank"),
        )
        for call, what in (*calls, (lambda: dist.reduce(value, dst=rank), "root rank")):
            with pytest.raises(hvd.SirtakiInternalError, match=what):
                call()


def test_torchrun_without_a_torch_group_is_refused(tmp_path):
    """Else each process would train for itself."""
    path = tmp_path / "alone.py"
    path.write_text("import sirtaki\nsirtaki.init()\nprint(sirtaki.size())\n")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(path)]
    ended = subprocess.run(words, env=jobs.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0 and "torchrun has started 2 processes (WORLD_SIZE=2)" in ended.stderr, ended.stderr
