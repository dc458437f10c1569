"""Training on GPUs: the optimizer, batch norm and the broadcasts, against the same on the host."""

import copy

import torch
import torch.nn.functional as F
from gpu import needs_gpu, own_gpu
from ranks import ranks

import sirtaki.torch as hvd

pytestmark = needs_gpu


def small_net() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 5),
    ).double()


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.randint(5, (4,), generator=generator)


def reference(rank_count: int, steps: int) -> list[torch.Tensor]:
    """The same training in one process, on the batches of all ranks."""
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(rank_count):
            images, labels = batch_of(rank, step)
            (F.cross_entropy(net(images), labels) / rank_count).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def train(compression: type, layout: torch.memory_format, sharded: bool = False) -> list[torch.Tensor]:
    gpu = own_gpu()
    net = small_net().to(gpu).to(memory_format=layout)
    if hvd.rank() > 0:
        for parameter in net.parameters():
            parameter.data.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    options = {"compression": compression, "shard_optimizer_state": sharded}
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    for step in range(3):
        images, labels = batch_of(hvd.rank(), step)
        optimizer.zero_grad()
        F.cross_entropy(net(images.to(gpu)), labels.to(gpu)).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in net.parameters()]


@ranks(2, 4)
def test_gpu_training_equals_one_process(rank_count):
    expected = reference(rank_count, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        for compression, limit in (
            (hvd.Compression.none, 1e-9),
            (hvd.Compression.fp16, 1e-3),
            (hvd.Compression.bf16, 1e-2),
        ):
            for sharded in (False, True):
                for got, right in zip(train(compression, layout, sharded), expected, strict=True):
                    assert (got - right).abs().max() < limit, (compression.__name__, layout, sharded)


@ranks(2)
def test_gpu_sync_batch_norm_is_the_hosts(rank_count):
    gpu = own_gpu()
    x = torch.randn(3 + hvd.rank(), 6, 4, generator=torch.Generator().manual_seed(hvd.rank()))
    norm = hvd.SyncBatchNorm(6)
    results = []
    for device in (torch.device("cpu"), gpu):
        layer = copy.deepcopy(norm).to(device)
        layer._name = f"norm.{device.type}"
        own = x.detach().clone().to(device).requires_grad_()
        (layer(own) ** 3).sum().backward()
        results.append([own.grad, layer.weight.grad, layer.running_mean, layer.running_var])
    for on_host, on_gpu in zip(*results, strict=True):
        assert torch.allclose(on_host, on_gpu.cpu(), atol=1e-4, rtol=1e-4)


@ranks(2)
def test_gpu_gradients_of_collectives(rank_count):
    gpu = own_gpu()
    x = torch.full((4,), hvd.rank() + 1.0, device=gpu, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum, name="forward") * (hvd.rank() + 1)).sum().backward()
    assert x.grad.tolist() == [3.0] * 4
    y = torch.ones(hvd.rank() + 1, 2, device=gpu, requires_grad=True)
    (hvd.allgather(y, name="gather") * 2).sum().backward()
    assert y.grad.is_cuda and y.grad.tolist() == [[2.0, 2.0]] * (hvd.rank() + 1)
    state = hvd.broadcast_object({"on": torch.ones(2, device=gpu)} if hvd.rank() == 0 else None, root_rank=0)
    assert state["on"].is_cuda
