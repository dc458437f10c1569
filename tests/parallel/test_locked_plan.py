"""Steps that repeat are locked and run without votes, on planes that wake ranks and on MPI, which cannot."""

import jobs
import pytest

STEPS = """
import torch, sirtaki.torch as hvd
from sirtaki.native import core
hvd.init()
rank, size = hvd.rank(), hvd.size()
sums = size * (size + 1) // 2

def step(number, names, rows=3):
    tensors = [torch.full((rows, 5), float((rank + 1) * (number + i))) for i in range(names)]
    order = range(names) if (rank + number) % 2 else reversed(range(names))
    handles = {i: hvd.allreduce_async_(tensors[i], name=f"g{i}", op=hvd.Sum) for i in order}
    for i, handle in handles.items():
        expected = torch.full((rows, 5), float(sums * (number + i)))
        assert torch.equal(hvd.synchronize(handle), expected), (number, i)
    loss = hvd.allreduce(torch.tensor([float(rank)]), name="loss", op=hvd.Sum)
    assert loss.item() == size * (size - 1) / 2

def planned():
    return core.statistics()["planned_batches"]

for number in range(30):
    step(number, 8)
assert core.statistics()["plans"] == 1 and planned() >= 2 * 20, core.statistics()
before = core.statistics()["messages"]
for number in range(20):
    step(number, 8)
after = core.statistics()
assert after["messages"] == before and after["departures"] == 0, (before, after)
for number in range(20):  # a parameter is frozen
    step(number, 7)
assert core.statistics()["departures"] == 1, core.statistics()
for number in range(20):  # another shape
    step(number, 7, rows=4)
assert core.statistics()["departures"] == 2 and core.statistics()["plans"] == 3, core.statistics()
for number in range(20):  # another step altogether takes the place of the first
    for name in "other", "one":
        hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum)
before = planned()
for number in range(20):
    for name in "other", "one":
        assert hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum)[0] == size
assert planned() == before + 40, (before, core.statistics())
for number in range(5 + rank):  # the others go on without those that have joined
    handle = hvd.allreduce_async(torch.ones(4, 5), name="g0", op=hvd.Sum)
    assert hvd.synchronize(handle)[0, 0] == sum(r + 5 > number for r in range(size))
assert hvd.join() == size - 1
for number in range(10):
    step(number, 8)
print("planned", planned())
"""


@pytest.mark.parametrize(("ranks", "plane"), [(2, "shm"), pytest.param(3, "mpi", marks=pytest.mark.long)])
def test_a_step_that_repeats_is_locked(ranks, plane):
    ended = jobs.run_script(ranks, STEPS, 60, {"SIRTAKI_CPU_OPERATIONS": plane})
    assert ended.code == 0, ended.output
    assert ended.output.count("planned") == ranks


OTHER_VERBS = """
import torch, sirtaki.torch as hvd
from sirtaki.native import core
hvd.init()
rank, size = hvd.rank(), hvd.size()

def rows(of_rank, number):
    return torch.full((of_rank + 1, 2), float(100 * number + of_rank))

def step(number, more=0, extra=()):
    mine = torch.cat([rows(rank, number), *extra])
    gathered = hvd.allgather_async(mine, name="gather")
    large = hvd.allgather_async(torch.full((30000,), rank), name="large")
    sent = torch.cat([torch.full((to + more,), 10 * rank + to + number) for to in range(size)])
    splits = [to + more for to in range(size)]
    exchanged = hvd.alltoall_async(sent, splits, name="exchange")
    equal = hvd.alltoall(torch.arange(2 * size) + number, name="equal")
    scattered = hvd.reducescatter(torch.arange(float(2 * size)) + number, name="scatter", op=hvd.Sum)
    sent_out = hvd.broadcast(torch.tensor([float(rank + number)]), size - 1, name="one")
    assert equal.tolist() == [2 * rank + number, 2 * rank + 1 + number] * size
    assert scattered.tolist() == [size * (2 * rank + i + number) for i in (0, 1)]
    assert sent_out.item() == size - 1 + number
    output, received = hvd.synchronize(exchanged)
    assert received.tolist() == [rank + more] * size
    assert output.tolist() == [10 * r + rank + number for r in range(size) for _ in range(rank + more)]
    assert hvd.synchronize(large).tolist() == [r for r in range(size) for _ in range(30000)]
    return hvd.synchronize(gathered)

def plain(number):
    return torch.cat([rows(r, number) for r in range(size)])

for number in range(30):
    assert torch.equal(step(number), plain(number)), number
assert core.statistics()["plans"] == 1 and core.statistics()["planned_batches"] > 60, core.statistics()
before = core.statistics()["messages"]
for number in range(10):
    assert torch.equal(step(number), plain(number)), number
assert core.statistics()["messages"] == before and core.statistics()["departures"] == 0, core.statistics()
# One rank alone asks for other sizes.
extra = (torch.full((3, 2), -1.0),) if rank == size - 1 else ()
assert torch.equal(step(7, extra=extra), torch.cat([plain(7), torch.full((3, 2), -1.0)]))
assert core.statistics()["departures"] == 1, core.statistics()
for number in range(100):  # on busy cores, calls that are collected make other batches in some steps
    assert torch.equal(step(number, more=1), plain(number)), number
assert core.statistics()["plans"] == 2, core.statistics()
print("planned")
"""


@pytest.mark.parametrize(("ranks", "plane"), [(2, "shm"), pytest.param(3, "shm", marks=pytest.mark.long), (2, "mpi")])
def test_every_verb_is_locked(ranks, plane):
    ended = jobs.run_script(ranks, OTHER_VERBS, 60, {"SIRTAKI_CPU_OPERATIONS": plane})
    assert ended.code == 0, ended.output
    assert ended.output.count("planned") == ranks


def test_a_result_that_is_there_before_it_is_waited_for():
    """What is asked for after it may depend on it all the same, so that no plan asks for both at once."""
    body = (
        STEPS.split("def step")[0]
        + """
import time
for number in range(12):
    handle = hvd.allreduce_async(torch.ones(2), name="first", op=hvd.Sum)
    time.sleep(0.02)
    factor = hvd.synchronize(handle)
    assert torch.equal(hvd.allreduce(factor, name="second", op=hvd.Sum), torch.full((2,), float(size * size)))
assert core.statistics()["plans"] == 1 and core.statistics()["departures"] == 0, core.statistics()
"""
    )
    ended = jobs.run_script(2, body, 60)
    assert ended.code == 0, ended.output


def test_a_plan_can_be_forbidden():
    body = (
        STEPS.split("for number in range(30)")[0]
        + """
for number in range(10):
    step(number, 3)
assert core.statistics()["plans"] == planned() == 0
"""
    )
    ended = jobs.run_script(2, body, 60, {"SIRTAKI_LOCK_PLAN": "0"})
    assert ended.code == 0, ended.output
