"""Process sets: made, used by their members, forgotten."""

import copy
import pickle

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


@ranks(2, 3, 4)
def test_life_of_a_set(rank_count):
    others = hvd.add_process_set(range(1, rank_count))
    assert others.process_set_id not in (None, 0)
    assert others.ranks == list(range(1, rank_count))
    assert others.size() == rank_count - 1
    assert others.included() == (hvd.rank() > 0)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="not part"):
            others.rank()
        with pytest.raises(ValueError):
            hvd.allreduce(torch.ones(2), process_set=others)
    else:
        assert others.rank() == hvd.rank() - 1
        own = torch.full((2,), float(hvd.rank()))
        assert hvd.allreduce(own, op=hvd.Sum, process_set=others).tolist() == [sum(range(1, rank_count))] * 2
        assert hvd.allreduce(own, process_set=others).tolist() == [sum(range(1, rank_count)) / (rank_count - 1)] * 2
        assert hvd.allgather(own[:1], process_set=others).tolist() == [float(r) for r in range(1, rank_count)]
        assert hvd.broadcast(own, rank_count - 1, process_set=others).tolist() == [rank_count - 1] * 2
        assert hvd.alltoall(torch.ones(rank_count - 1), process_set=others).tolist() == [1.0] * (rank_count - 1)
        rows = torch.ones(2 * (rank_count - 1))
        assert hvd.reducescatter(rows, op=hvd.Sum, process_set=others).tolist() == [rank_count - 1] * 2
        hvd.barrier(others)
        with pytest.raises(ValueError):
            hvd.broadcast(own, 0, process_set=others)
        with pytest.raises(NotImplementedError):
            hvd.allreduce(own, op=hvd.Adasum, process_set=others)
    assert hvd.remove_process_set(others) is True
    assert others.process_set_id is None
    assert others.size() is None
    assert hvd.remove_process_set(others) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(2), process_set=others)


@ranks(3, 4)
def test_overlapping_sets_at_once(rank_count):
    sets = [hvd.add_process_set([rank, (rank + 1) % rank_count]) for rank in range(rank_count)]
    mine = [s for s in sets if s.included()]
    assert len(mine) == 2
    handles = [
        hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="same", process_set=s)
        for s in (mine if hvd.rank() % 2 else mine[::-1])
    ]
    assert all(hvd.synchronize(handle).tolist() == [2.0] * 3 for handle in handles)
    for s in sets:
        assert hvd.remove_process_set(s)


@ranks(2)
def test_process_sets_that_cannot_be_added(rank_count):
    added = hvd.add_process_set([1])
    for wrong in ([0, 1], [1], [2], [], [0, 5], [hvd.rank()], added):
        with pytest.raises(ValueError):
            hvd.add_process_set(wrong)
            pytest.fail(str(wrong))
    again = hvd.add_process_set(hvd.ProcessSet([0]))
    assert again.process_set_id == added.process_set_id + 1
    number = added.process_set_id
    assert hvd.remove_process_set(added)
    reused = hvd.add_process_set([1])
    assert reused.process_set_id == number
    assert hvd.remove_process_set(reused) and hvd.remove_process_set(again)


@ranks(3)
def test_sets_given_to_init(rank_count):
    hvd.shutdown()
    assert hvd.global_process_set.ranks is None
    first, second = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])
    assert first.size() is None and first.included is not None
    hvd.init(process_sets=[first, second])
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert hvd.global_process_set.ranks == [0, 1, 2]
    same = hvd.ProcessSet([2])
    hvd.init(process_sets=[same])
    assert same.process_set_id == 2
    with pytest.raises(KeyError):
        hvd.init(process_sets=[hvd.ProcessSet([1, 2])])
    hvd.shutdown()
    assert first.process_set_id is None and same.process_set_id is None
    hvd.init()
    hvd.barrier()


@ranks(2)
def test_fixed_sets_cannot_change(rank_count, monkeypatch):
    hvd.shutdown()
    monkeypatch.delenv("SIRTAKI_DYNAMIC_PROCESS_SETS")
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([1])
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    added = hvd.add_process_set([1])
    assert hvd.remove_process_set(added)
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    assert hvd.remove_process_set(hvd.add_process_set([1]))


@ranks(3)
def test_part_of_the_world(rank_count):
    """init(comm=[...]) makes a job of some of the processes."""
    hvd.shutdown()
    from_launcher = _launcher_rank()
    hvd.init(comm=[0, 2] if from_launcher != 1 else [1])
    assert hvd.size() == (2 if from_launcher != 1 else 1)
    total = hvd.allreduce(torch.tensor([float(from_launcher)]), op=hvd.Sum)
    assert total.item() == (2.0 if from_launcher != 1 else 1.0)
    hvd.shutdown()
    hvd.init()
    assert hvd.size() == 3


def _launcher_rank() -> int:
    import os

    return int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


@ranks(2)
def test_copies_and_text(rank_count):
    added = hvd.add_process_set([1])
    assert copy.deepcopy(added) is added
    restored = pickle.loads(pickle.dumps(added))
    assert restored.process_set_id == added.process_set_id
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set
    assert str(added) == f"ProcessSet(process_set_id={added.process_set_id}, ranks=[1], mpi_comm=None)"
    assert hvd.remove_process_set(added)
