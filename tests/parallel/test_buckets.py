"""Gradients in buckets."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.torch.gradients import buckets


def net() -> torch.nn.ModuleDict:
    torch.manual_seed(1)
    return torch.nn.ModuleDict({name: torch.nn.Linear(6, 6) for name in ("a", "b", "c", "d")})


def loss_of(model: torch.nn.ModuleDict, rank: int, step: int, layers: str) -> torch.Tensor:
    x = torch.full((3, 6), 0.1 * (rank + 1) + step)
    for layer in layers:
        x = torch.tanh(model[layer](x))
    return x.square().sum()


def reference(layers_of: list[list[str]], rank_count: int) -> list[torch.Tensor]:
    """What one process computes from the losses of all ranks; layers_of: by step and rank."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, by_rank in enumerate(layers_of):
        optimizer.zero_grad()
        for rank in range(rank_count):
            for layers in by_rank[rank].split("+"):
                (loss_of(model, rank, step, layers) / rank_count).backward()
        optimizer.step()
    return list(model.parameters())


@ranks(2)
def test_buckets_of_gradients(rank_count, monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", {"cpu": 400})
    # The second step, with buckets, leaves layers out on one rank; the fourth uses "d" only in a second backward.
    layers_of = [["abcd", "abcd"], ["abd", "abcd"], ["abcd", "abcd"], ["abc+d", "abc+d"], ["abcd", "abcd"]]
    for compression, limit in ((hvd.Compression.none, 1e-6), (hvd.Compression.fp16, 2e-3)):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
        if compression is hvd.Compression.none:
            expected = reference(layers_of, rank_count)
        for step, by_rank in enumerate(layers_of):
            optimizer.zero_grad()
            for layers in by_rank[hvd.rank()].split("+"):
                loss_of(model, hvd.rank(), step, layers).backward()
            optimizer.step()
            units = optimizer._distributed.reducer.buckets
            if step == 0:
                assert sorted(len(unit.slots) for unit in units) == [2, 6], [unit.name for unit in units]
        for parameter, right in zip(model.parameters(), expected, strict=True):
            assert (parameter - right).abs().max() < limit
        model["a"].weight.requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), 0, "abcd").backward()
        assert model["a"].weight.grad is None and model["a"].bias.grad is not None
        with pytest.raises(AssertionError, match="computed more than backward_passes_per_step"):
            loss_of(model, hvd.rank(), 0, "bc").backward()
        hvd.barrier()


@ranks(2)
def test_a_bucket_lies_alike_on_all_ranks(rank_count):
    linear = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, linear.named_parameters())
    for step in range(4):
        if step == 3:
            linear.double()  # the same parameters and strides
        optimizer.zero_grad()
        linear(torch.full((1, 3), hvd.rank() + 1, dtype=linear.weight.dtype)).sum().backward()
        assert torch.equal(linear.weight.grad, torch.full_like(linear.weight, 1.5)), (step, linear.weight.grad)
        optimizer.step()
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compression = hvd.Compression.fp16
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    weight = model[0].weight
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 3, 8, 8) * (hvd.rank() + 1 + step)).square().mean().backward()
        assert weight.grad.is_contiguous(memory_format=torch.channels_last)
        both = hvd.allgather(weight.grad.contiguous().reshape(1, -1))
        assert torch.equal(both[0], both[1]) and both[0].abs().max() > 0
        optimizer.step()
    if hvd.rank() == 1:
        model.to(memory_format=torch.contiguous_format)
    optimizer.zero_grad()
    with pytest.raises(hvd.HorovodInternalError, match="shape differs"):
        model(torch.ones(1, 3, 8, 8)).square().mean().backward()
