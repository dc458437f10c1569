"""Unequal numbers of batches on three hosts, with batch norm in the model (C12)."""

import re

import pytest
from simulated import Hosts, report

# With join: rank r has 10 + r batches. Without it: rank 0 has two fewer than the others, and is busy afterwards.
TRAINING = """
import os, sys, time, torch, sirtaki.torch as hvd
from sirtaki.exchange import allgather_object
torch.set_num_threads(1)
hvd.init()
rank = hvd.rank()
torch.manual_seed(0)
layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), hvd.SyncBatchNorm(4), torch.nn.Linear(4, 1)
model = torch.nn.Sequential(*layers)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
def train(batches):
    for _ in range(batches):
        optimizer.zero_grad()
        model(torch.randn(6, 3)).square().mean().backward()
        optimizer.step()
train(10 + rank)
last = hvd.join()
hvd.broadcast_parameters(model.state_dict(), last)
sums = allgather_object(float(sum(value.double().sum() for value in model.state_dict().values())))
counted = int(layers[1].num_batches_tracked)
print("joined", last, counted, sums == [sums[0]] * 3, flush=True)
def evaluate():
    time.sleep(60)
train(3 if rank == 0 else 5)
print("finished", flush=True)
if rank == 0: evaluate()
"""


@pytest.mark.long
def test_uneven_batches_with_batch_norm(either: Hosts) -> None:
    """All end together with join; without it the others learn within the limit which rank has finished."""
    quick = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    done = either.run_program(TRAINING, start="", OMP_NUM_THREADS="1", **quick)
    text = report(done)
    out = done.stdout.decode().splitlines()
    assert sorted(out) == ["[0] finished", *(f"[{rank}] joined 2 12 True" for rank in range(3))], text
    assert done.returncode not in (0, None), text
    for rank in (1, 2):
        waits = rf"rank {rank} \(n{rank + 1}\) waits for '\S+' from \S*program.py:\d+ .*\(missing: rank 0\)"
        assert re.search(waits, text), text
    assert re.search(r"rank 0 \(n1\) waits for nothing", text) and "in evaluate" in text, text
    assert "rank 0 on host n1" in text.strip().splitlines()[-1], text
