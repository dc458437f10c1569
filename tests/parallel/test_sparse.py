"""C27: sparse gradients give what dense ones would."""

import logging

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd

ROWS, WIDTH = 40, 3


def sparse_part(rank: int, rows: int) -> torch.Tensor:
    """Some rows of a table, with duplicates."""
    generator = torch.Generator().manual_seed(rank)
    indices = torch.randint(0, ROWS, (1, rows), generator=generator)
    values = torch.rand(rows, WIDTH, generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(indices, values, (ROWS, WIDTH))


@ranks(2, 3)
@pytest.mark.parametrize("op", (hvd.Sum, hvd.Average), ids=str)
def test_sparse_allreduce(rank_count, op):
    for rows in (0, 1, 5, 100):
        counts = [rows + 2 * rank for rank in range(rank_count)]
        expected = sum(sparse_part(rank, counts[rank]).to_dense() for rank in range(rank_count))
        if op == hvd.Average:
            expected = expected / rank_count
        own = sparse_part(hvd.rank(), counts[hvd.rank()])
        result = hvd.sparse_allreduce_async(own, name=f"sparse.{rows}", op=op)()
        assert result.is_sparse and result.is_coalesced()
        torch.testing.assert_close(result.to_dense(), expected)
    result = hvd.sparse_allreduce_async(sparse_part(hvd.rank(), 3), name=None, op=op)()
    assert result.shape == (ROWS, WIDTH)


@ranks(2, 3)
def test_sparse_average_at_the_ends(rank_count):
    """By the rule of dense averages: integers keep their dtype and are exact, finite numbers stay finite."""
    for dtype in (torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        limits = torch.iinfo(dtype) if not dtype.is_floating_point else torch.finfo(dtype)
        values = torch.tensor([[limits.max], [limits.min], [3]], dtype=dtype)
        own = torch.sparse_coo_tensor(torch.tensor([[1, 5, 7]]), values, (ROWS, 1))
        result = hvd.sparse_allreduce_async(own, name=f"ends {dtype}", op=hvd.Average)()
        assert result.dtype == dtype
        assert result.values().tolist() == values.tolist(), dtype
    largest = torch.finfo(torch.float64).max
    for dtype, end in ((torch.complex64, torch.finfo(torch.float32).max), (torch.complex128, largest)):
        values = torch.tensor([[complex(end, -end)], [complex(3, -1)]], dtype=dtype)
        own = torch.sparse_coo_tensor(torch.tensor([[1, 5]]), values, (ROWS, 1))
        result = hvd.sparse_allreduce_async(own, name=f"ends {dtype}", op=hvd.Average)()
        assert result.values().tolist() == values.tolist(), dtype
    unequal = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[-1 - hvd.rank()]]), (ROWS, 1))
    result = hvd.sparse_allreduce_async(unequal, name="truncated", op=hvd.Average)()
    assert result.values().tolist() == [[-(sum(range(1, rank_count + 1)) // rank_count)]]


def make(sparse: bool) -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(ROWS, WIDTH, sparse=sparse).double()


def words(rank: int, step: int, count: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (count,), generator=torch.Generator().manual_seed(10 * step + rank))


def train(layer, optimizer, counts) -> None:
    for step, count in enumerate(counts):
        optimizer.zero_grad()
        if count[hvd.rank()]:
            layer(words(hvd.rank(), step, count[hvd.rank()])).square().sum().backward()
        optimizer.step()


@ranks(2, 4)
@pytest.mark.parametrize("as_dense", (False, True))
def test_embedding_equals_dense(rank_count, as_dense):
    """Few rows, many rows (denser than the table), none on one rank, from the first step on."""
    counts = [[3] * 4, [0, 5, 5, 5], [90] * 4, [2, 0, 40, 1], [1] * 4]
    layers = []
    for sparse in (True, False):
        layer = make(sparse)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9 if not as_dense and not sparse else 0.0),
            layer.named_parameters(),
            sparse_as_dense=as_dense,
        )
        optimizer.param_groups[0]["momentum"] = 0.0
        train(layer, optimizer, counts)
        layers.append(layer)
    torch.testing.assert_close(layers[0].weight, layers[1].weight)
    bits = layers[0].weight.detach().numpy().tobytes()
    assert all(other == bits for other in hvd.allgather_object(bits))


@ranks(2, 3)
def test_sparse_as_dense_is_sparse_again(rank_count):
    """SparseAdam takes no dense gradient; the steps are those of a serial run on the mean loss. A rank has no rows."""
    counts = [[3] * 3, [0, 5, 5], [90] * 3, [4] * 3]
    layer, serial = make(True), make(True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(layer.parameters(), 0.1), layer.named_parameters(), sparse_as_dense=True
    )
    train(layer, optimizer, counts)
    assert layer.weight.grad.is_sparse and layer.weight.grad.is_coalesced()
    alone = torch.optim.SparseAdam(serial.parameters(), 0.1)
    for step, count in enumerate(counts):
        alone.zero_grad()
        for rank in range(rank_count):
            if count[rank]:
                (serial(words(rank, step, count[rank])).square().sum() / rank_count).backward()
        alone.step()
    torch.testing.assert_close(layer.weight, serial.weight)


@ranks(3)
def test_first_used_on_one_rank(rank_count):
    """The other ranks learn that the gradient is sparse without having one."""
    layer, dense = make(True), make(False)
    for net in (layer, dense):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
        train(net, optimizer, [[0, 4, 0], [0, 0, 0], [5, 0, 0], [2, 2, 2]])
    torch.testing.assert_close(layer.weight, dense.weight)


@ranks(2)
def test_one_line_when_it_becomes_dense(rank_count, caplog):
    layer = make(True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(layer.parameters(), 0.1), layer.named_parameters())
    with caplog.at_level(logging.WARNING, logger="sirtaki.torch"):
        train(layer, optimizer, [[3, 3], [90, 90], [90, 90]])
    assert len([r for r in caplog.records if "dense" in r.getMessage()]) == 1
    assert layer.weight.grad.is_sparse


@ranks(2, 4)
def test_tied_embedding(rank_count):
    """30,000 x 64, tied to the output layer: the joined gradient is dense, and equals a dense run."""
    results = []
    for sparse in (True, False):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(30000, 64, sparse=sparse)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), 1.0), layer.named_parameters())
        for step in range(2):
            optimizer.zero_grad()
            picked = torch.randint(0, 30000, (20,), generator=torch.Generator().manual_seed(hvd.rank() + 7 * step))
            hidden = layer(picked)
            (hidden @ layer.weight[:100].t()).square().mean().backward()
            optimizer.step()
        results.append(layer.weight.detach())
    torch.testing.assert_close(results[0], results[1])
