"""C12: ranks with unequal numbers of batches."""

import jobs
import torch
from ranks import ranks

import sirtaki.torch as hvd


@ranks(1, 2, 3)
def test_join_returns_the_last_rank(rank_count):
    if hvd.rank() == 0:
        for _ in range(3 if rank_count > 1 else 0):
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="more").tolist() == [1.0, 1.0]
    last = hvd.join()
    assert hvd.allgather_object(last) == [last] * rank_count
    assert 0 <= last < rank_count
    assert hvd.join() in range(rank_count)


@ranks(2, 3)
def test_uneven_batches_with_batch_norm(rank_count):
    """Rank r has 4 + r batches; all end, with equal weights on those that trained to the end together."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
    for _ in range(4 + hvd.rank()):
        hvd.allreduce(torch.ones(2))
        optimizer.zero_grad()
        model(torch.randn(6, 3)).square().mean().backward()
        optimizer.step()
    assert hvd.join() == rank_count - 1
    hvd.broadcast_parameters(model.state_dict(), rank_count - 1)
    # The ranks have made unequal numbers of calls without a name, and still meet, gradients included.
    x = torch.ones(1, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert x.grad.item() == rank_count
    sums = hvd.allgather_object(float(sum(p.double().sum() for p in model.parameters())))
    assert sums == [sums[0]] * rank_count


@ranks(2)
def test_join_with_synchronised_batch_norm(rank_count):
    """A rank that has joined counts as an empty batch."""
    layer = hvd.SyncBatchNorm(2, affine=False).double()
    alone = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    if hvd.rank() == 0:
        expected = torch.nn.BatchNorm1d(2, affine=False).double()(alone)
        torch.testing.assert_close(layer(alone), expected)
    hvd.join()


def test_without_join_it_is_an_error_naming_the_rank_that_finished():
    ended = jobs.run_script(
        2,
        """
        import sirtaki.torch as hvd, torch
        hvd.init()
        for batch in range(10 + hvd.rank()):
            hvd.allreduce(torch.ones(3), name="gradient")
        """,
        extra={"SIRTAKI_STALL_CHECK_TIME_SECONDS": "2", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "5"},
    )
    assert ended.code not in (0, None), ended.output
    assert "'allreduce.gradient' cannot complete: rank 0 left early" in ended.output, ended.output
