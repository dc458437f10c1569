"""A name is taken until the program has learned of its call's result: every rank refuses the same call."""

import copy
import pickle
import weakref

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


def start(name: str) -> int:
    return hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum)


def all_ended() -> None:
    """What was started before has ended on every rank, though its program need not know."""
    for _ in range(3):
        hvd.barrier()


@ranks(2, 3)
@pytest.mark.parametrize("ended", [True, False])
def test_second_call_is_refused_on_every_rank(rank_count, ended):
    """Whether or not the first call has ended; afterwards the name is as good as new."""
    first = start("twice")
    if ended:
        all_ended()
    with pytest.raises(ValueError, match=r"'allreduce\.twice' is used again.*synchronize"):
        start("twice")
    other = start("another name")
    assert hvd.synchronize(first).tolist() == hvd.synchronize(other).tolist() == [rank_count] * 3
    assert hvd.synchronize(start("twice")).tolist() == [rank_count] * 3


@ranks(2, 3)
def test_a_name_is_free_once_the_call_is_done(rank_count):
    handle = start("polled")
    while not hvd.poll(handle):
        pass
    again = start("polled")
    assert hvd.synchronize(again).tolist() == hvd.synchronize(handle).tolist() == [rank_count] * 3
    for _ in range(2):  # a failure is a result as well
        with pytest.raises(hvd.HorovodInternalError, match="shape differs"):
            hvd.allreduce(torch.ones(3 + hvd.rank()), name="failed")
    assert hvd.allreduce(torch.ones(2), name="failed").tolist() == [1.0, 1.0]


@ranks(2, 3)
@pytest.mark.parametrize("late", [0, 1])
def test_dropped_calls_run_one_after_the_other(rank_count, late):
    """Nobody can wait for a call without a handle; the next one of its name begins when it has ended on this rank."""
    tensor = torch.ones(2, dtype=torch.float64)
    if hvd.rank() == late:
        hvd.barrier()  # the others have started all of theirs
    for _ in range(5):
        hvd.allreduce_async_(tensor, name="dropped", op=hvd.Sum)
    last = hvd.allreduce_async_(tensor, name="dropped", op=hvd.Sum)
    if hvd.rank() != late:
        hvd.barrier()
    assert hvd.synchronize(last).tolist() == [float(rank_count) ** 6] * 2


@ranks(2)
def test_dropped_calls_keep_nothing(rank_count):
    tensor = torch.ones(1000)
    kept = weakref.ref(tensor)
    hvd.allreduce_async_(tensor, name="forgotten")
    del tensor
    all_ended()
    hvd.allreduce(torch.ones(1))
    assert kept() is None


@ranks(2)
def test_handles_are_integers(rank_count):
    handle = start("handle")
    assert isinstance(handle, int)
    copies = [copy.copy(handle), copy.deepcopy(handle), pickle.loads(pickle.dumps(handle)), handle + 0]
    assert copies == [handle] * 4
    del copies  # the call goes on
    assert hvd.synchronize(int(handle)).tolist() == [2.0] * 3
    assert hvd.synchronize(handle) is None
