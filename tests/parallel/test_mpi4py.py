"""Communicators of mpi4py, imported before or after init."""

import jobs
import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


@ranks(3)
def test_communicators(rank_count):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.Get_size() == rank_count and world.Get_rank() == hvd.rank()
    hvd.shutdown()
    part = world.Split(color=int(world.rank == 1), key=world.rank)
    backwards = world.Split(color=0, key=-world.rank)
    for comm in (world, [world], part, backwards):
        hvd.init(comm)
        expected = comm[0] if isinstance(comm, list) else comm
        assert (hvd.size(), hvd.rank()) == (expected.size, expected.rank)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == expected.size
        hvd.shutdown()
    for wrong in (MPI.COMM_NULL, [world, part]):
        with pytest.raises(ValueError):
            hvd.init(wrong)
    hvd.init()


@ranks(3)
def test_process_sets_from_communicators(rank_count):
    """A split gives each part its own set; every rank's object stands for its own part."""
    from mpi4py import MPI

    hvd.shutdown()
    split = MPI.COMM_WORLD.Split(color=MPI.COMM_WORLD.rank % 2, key=MPI.COMM_WORLD.rank)
    mine = hvd.ProcessSet(split)
    hvd.init(MPI.COMM_WORLD, process_sets=[mine])
    assert mine.ranks == ([1] if hvd.rank() == 1 else [0, 2])
    assert mine.size() == split.size and mine.rank() == split.rank
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine).item() == split.size
    with pytest.raises(NotImplementedError):
        hvd.add_process_set(hvd.ProcessSet(split))
    hvd.shutdown()
    with pytest.raises(NotImplementedError):
        hvd.init(comm=[0, 1, 2], process_sets=[hvd.ProcessSet(split)])
    hvd.init()


def test_mpi4py_first():
    ended = jobs.run_script(
        2,
        """
        from mpi4py import MPI
        assert MPI.COMM_WORLD.size == 2
        import sirtaki.torch as hvd, torch
        hvd.init(MPI.COMM_WORLD)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
        assert MPI.COMM_WORLD.allreduce(hvd.rank()) == 1
        hvd.shutdown()
        MPI.COMM_WORLD.barrier()
        print("well")
        """,
    )
    assert ended.code == 0 and ended.output.count("well") == 2, ended.output
