"""Groups of some ranks, meshes, and what two ranks of a torch group send each other."""

import pytest
import torch
import torch.distributed as dist
from ranks import ranks
from torch.distributed.device_mesh import init_device_mesh
from torch_groups import groups, of_rank, same

import sirtaki.torch as hvd


@ranks(2, 3)
def test_send_and_receive(rank_count):
    rank = hvd.rank()
    after, before = (rank + 1) % rank_count, (rank - 1) % rank_count
    with groups() as gloo:
        for dtype in (torch.float64, torch.bfloat16, torch.bool):
            got = [torch.empty(4, 3, dtype=dtype) for _ in range(2)]
            for group, place in ((None, got[0]), (gloo, got[1])):
                operations = [
                    dist.P2POp(dist.isend, of_rank(4, 3, dtype=dtype), after, group=group),
                    dist.P2POp(dist.irecv, place, before, group=group),
                ]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
            same(*got)
        if rank == 0:
            dist.send(torch.arange(6.0).view(2, 3).t(), 1, tag=5)  # not contiguous
            dist.send_object_list([{"from": rank}], 1)
            later = torch.empty(1)
            assert dist.irecv(later, 1).get_future().wait()[0].item() == 7
        if rank == 1:
            place = torch.zeros(2, 3).t()
            dist.recv(place, 0, tag=5)
            assert torch.equal(place, torch.arange(6.0).view(2, 3).t())
            objects = [None]
            dist.recv_object_list(objects, 0)
            assert objects == [{"from": 0}]
            dist.send(torch.tensor([7.0]), 0)
        with pytest.raises(ValueError, match="tag must lie in"):
            dist.send(torch.empty(1), after, tag=2**40)
        with pytest.raises(NotImplementedError, match="rank of the sender"):
            dist.recv(torch.empty(1))


@ranks(2, 3)
def test_groups_that_their_members_make(rank_count):
    rank = hvd.rank()
    with groups():
        pair = dist.new_group([0, 1])
        alone = [dist.new_group([each]) for each in range(rank_count)][rank]
        backwards = dist.new_group(list(range(rank_count)))  # the same ranks as the default group
        if rank < 2:
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total, group=pair)
            assert total.item() == 3
            root = torch.tensor([rank])
            dist.broadcast(root, src=1, group=pair)
            assert root.item() == 1 and dist.get_group_rank(pair, rank) == rank
        own = torch.tensor([5.0])
        dist.all_reduce(own, group=alone)
        assert own.item() == 5
        messages = [torch.empty(1) for _ in range(2)]  # of two groups, received in the other order
        if rank == 0:
            sent = [
                dist.isend(torch.tensor([value]), 1, group=group) for value, group in ((1.0, None), (2.0, backwards))
            ]
            for work in sent:
                work.wait()
        if rank == 1:
            dist.recv(messages[1], 0, group=backwards)
            dist.recv(messages[0], 0)
            assert [message.item() for message in messages] == [1.0, 2.0]


@ranks(2, 4)
def test_mesh_of_two_dimensions(rank_count):
    with groups():
        mesh = init_device_mesh("cpu", (rank_count // 2, 2), mesh_dim_names=("between", "within"))
        row, column = divmod(hvd.rank(), 2)
        assert tuple(mesh.get_coordinate()) == (row, column)
        within = torch.tensor([float(hvd.rank())])
        dist.all_reduce(within, group=mesh.get_group("within"))
        assert within.item() == 4 * row + 1
        between = torch.tensor([float(hvd.rank())])
        dist.all_reduce(between, group=mesh.get_group("between"))
        assert between.item() == sum(2 * each + column for each in range(rank_count // 2))


@ranks(2)
def test_ranks_in_another_order_are_refused(rank_count):
    """The rows of their results would have the engine's order."""
    with groups(), pytest.raises(ValueError, match="sort_ranks=True"):
        dist.new_group([1, 0], sort_ranks=False)
