"""Complex numbers travel as pairs of real ones, float8 as bytes where nothing is added up."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd

COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def own(dtype: torch.dtype) -> torch.Tensor:
    rank = hvd.rank()
    return torch.tensor([[1 + rank - 2j, 3j * rank], [rank, -1j]], dtype=dtype)


@ranks(2, 3)
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_collectives(rank_count, dtype):
    total = sum(torch.tensor([[1 + r - 2j, 3j * r], [r, -1j]], dtype=dtype) for r in range(rank_count))
    torch.testing.assert_close(hvd.allreduce(own(dtype), op=hvd.Sum), total)
    torch.testing.assert_close(hvd.allreduce(own(dtype)), total / rank_count)
    inplace = own(dtype)
    hvd.allreduce_(inplace, op=hvd.Sum)
    torch.testing.assert_close(inplace, total)
    root = hvd.broadcast(own(dtype), 1)
    assert root[0, 0] == 2 - 2j
    gathered = hvd.allgather(own(dtype))
    assert gathered.shape == (2 * rank_count, 2) and gathered[2 * (rank_count - 1), 0] == rank_count - 2j
    for op in (hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(ValueError, match="complex tensors can be reduced with Sum or Average"):
            hvd.allreduce(own(dtype), op=op)
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(own(dtype).conj())


@ranks(2, 3)
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_parameters_and_buffers(rank_count, dtype):
    """A model with a real and a complex parameter equals a serial run."""

    def make():
        model = torch.nn.Module()
        model.spectrum = torch.nn.Parameter(torch.full((3,), 1 + 1j, dtype=dtype))
        model.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        model.register_buffer("window", torch.full((3,), 2 + hvd.rank() * 1j, dtype=dtype))
        return model

    def loss_of(model, factor):
        return (model.spectrum * (factor + 1j) * model.scale).abs().square().sum()

    model, expected = make(), make()
    hvd.broadcast_parameters(model.state_dict(), 0)
    assert model.window.tolist() == [2.0] * 3
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
    reference = torch.optim.SGD(expected.parameters(), 0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model, hvd.rank() + 1.0).backward()
        optimizer.step()
        reference.zero_grad()
        (sum(loss_of(expected, r + 1.0) for r in range(rank_count)) / rank_count).backward()
        reference.step()
    torch.testing.assert_close(model.spectrum, expected.spectrum, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.scale, expected.scale, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_gradients_that_one_rank_conjugates_when_they_are_read(rank_count):
    """Such a tensor's memory holds other values than it shows."""
    weight = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), [("weight", weight)])
    factor = torch.tensor([3 + 4j, 1j])

    def loss(rank: int, step: int) -> torch.Tensor:
        return (weight.conj() if rank == 1 and step > 1 else weight).mul(factor).sum().abs()

    for step in range(4):
        optimizer.zero_grad()
        gradients = [torch.autograd.grad(loss(rank, step), weight)[0] for rank in range(rank_count)]
        assert [gradient.is_conj() for gradient in gradients] == [False, step > 1]
        loss(hvd.rank(), step).backward()
        assert torch.allclose(weight.grad, sum(gradients) / rank_count), step
        optimizer.step()


@ranks(2)
def test_gradients_that_one_rank_negates_when_they_are_read(rank_count):
    """After steps whose gradients were sent from their own memory."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), [("weight", weight)], op=hvd.Sum)
    for step in range(4):
        optimizer.zero_grad()
        if step < 2:
            weight.sum().neg().backward()
        else:
            weight.grad = torch._neg_view(torch.ones(3)) if hvd.rank() == 0 else torch.full((3,), -1.0)
        optimizer.step()
        assert weight.grad.tolist() == [-2.0] * 3, step


@ranks(2)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_moved_and_not_added_up(rank_count, dtype):
    values = torch.full((3,), 1.0 + hvd.rank()).to(dtype)
    hvd.broadcast_parameters({"scale": values}, 1)
    assert values.float().tolist() == [2.0] * 3
    gathered = hvd.allgather(torch.full((1,), 1.0 + hvd.rank()).to(dtype))
    assert gathered.dtype == dtype and gathered.float().tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="not supported in reductions"):
        hvd.allreduce(values)
