"""C13: what other ranks can call while a rank has joined."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


@ranks(2, 3)
def test_other_verbs_while_a_rank_has_joined(rank_count):
    """A joined rank contributes no rows, and gets what all ranks get. What only it would get is refused."""
    last = rank_count - 1
    here = range(1, rank_count)  # rank 0 joins at once, after one step with everybody
    rows = torch.full((hvd.rank() + 1, 2), float(hvd.rank()))
    for step in range(4):
        members = range(rank_count) if step == 0 else here
        gathered = hvd.allgather(rows, name="rows")
        assert gathered[:, 0].tolist() == [float(r) for r in members for _ in range(r + 1)]
        assert hvd.broadcast(torch.tensor([hvd.rank()]), last, name="from the last").item() == last
        assert hvd.allgather_object(hvd.rank(), name="object") == list(members)
        splits = [0, *(1 for _ in here)]
        mine = torch.full((len(here),), hvd.rank())
        received, counts = hvd.alltoall(mine, splits, name="to the others")
        assert received.tolist() == ([] if hvd.rank() == 0 else list(members))
        assert counts.tolist() == [int(hvd.rank() > 0 and r in members) for r in range(rank_count)]
        if hvd.rank() == 0:
            break
    if hvd.rank() > 0:
        for call, word in (
            (lambda: hvd.broadcast(torch.ones(2), 0, name="from rank 0"), "its root, rank 0, called join"),
            (lambda: hvd.alltoall(torch.ones(rank_count), name="to all"), "rows are sent to rank 0, which called join"),
            # Refused at once: a rank that comes later may find that the others have joined, too.
            (lambda: hvd.reducescatter(torch.ones(4), name="parts"), r"ranks? 0(, \d)* called join"),
        ):
            with pytest.raises(hvd.HorovodInternalError, match=word):
                call()
    hvd.join()
    assert hvd.allgather(rows, name="rows").shape[0] == sum(range(1, rank_count + 1))
    assert hvd.alltoall(torch.ones(rank_count), name="to all").tolist() == [1.0] * rank_count


@ranks(2, 3)
@pytest.mark.parametrize("rows", (1, 40))
def test_sparse_averages_while_a_rank_has_joined(rank_count, rows):
    """By the number of ranks that have not joined, whether rows or the whole table is sent; gradients as well."""
    table = torch.nn.Embedding(20, 1, sparse=True).double()
    table.weight.data.zero_()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), table.named_parameters())
    for step in range(2 + (hvd.rank() > 0)):
        members = range(rank_count) if step < 2 else range(1, rank_count)
        indices = torch.arange(rows) % 20
        values = torch.full((rows, 1), hvd.rank() + 1.0, dtype=torch.float64)
        local = torch.sparse_coo_tensor(indices[None], values, (20, 1))
        mean = sum(r + 1.0 for r in members) / len(members)
        average = hvd.sparse_allreduce_async(local, "table", hvd.Average)()
        assert average.to_dense()[0].item() == mean * max(1, rows // 20)
        optimizer.zero_grad()
        (table(indices).sum() * (hvd.rank() + 1)).backward()
        assert table.weight.grad.to_dense()[0].item() == mean * max(1, rows // 20)
        optimizer.step()
    hvd.join()
