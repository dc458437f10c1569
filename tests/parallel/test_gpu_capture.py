"""capture: a step as a CUDA graph gives what the step gives, and what cannot be captured is refused."""

import pytest
import torch
import torch.nn.functional as F
from gpu import needs_gpu, own_gpu
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.torch import captured as capturing
from sirtaki.torch.gradients import direct
from sirtaki.torch.optimizer import Attachment

pytestmark = needs_gpu


def training(gpu: torch.device, lr: float | torch.Tensor = 0.1, **options):
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 4)).to(gpu)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return net, optimizer, step


def batches(gpu: torch.device, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(6)
    return [(torch.randn(8, 20, device=gpu), torch.randint(4, (8,), device=gpu)) for _ in range(count)]


@ranks(1)
def test_gpu_captured_step_trains_as_the_step(rank_count, monkeypatch):
    """One rank reduces with itself here, so that the graph holds NCCL's calls and our kernels."""
    gpu = own_gpu()
    monkeypatch.setattr(Attachment, "_has_peers", lambda self: True)
    data = batches(gpu, 6)
    shards = {"shard_optimizer_state": True}
    cases = {}, {"compression": hvd.Compression.bf16}, shards, {**shards, "free_gradients": True}
    for options in cases:
        net, _, step = training(gpu, **options)
        expected = [step(*batch).item() for batch in [data[0]] * 3 + data]
        eager = [parameter.detach().clone() for parameter in net.parameters()]

        net, optimizer, step = training(gpu, **options)
        captured = capturing.CapturedStep(step, data[0], [optimizer])
        captured._reduction = direct.connect(gpu.index)
        captured._record(3)
        losses = [captured(*batch).item() for batch in data]
        assert losses == pytest.approx(expected[3:], rel=1e-3)
        calls = 2 if "shard_optimizer_state" in options else 1  # a reducescatter and an allgather, or an allreduce
        assert len(captured._reduction.calls) == calls, captured._reduction.calls
        for parameter, right in zip(net.parameters(), eager, strict=True):
            assert torch.allclose(parameter, right, atol=1e-4)
        with pytest.raises(ValueError, match=r"input 0 was captured as \(8, 20\)"):
            captured(torch.zeros(7, 20, device=gpu), data[0][1])
        optimizer.param_groups[0]["lr"] = 0.01
        with pytest.raises(RuntimeError, match=r"lr was 0\.1 when the step was captured and is 0\.01 now"):
            captured(*data[0])


@ranks(1)
def test_gpu_capture_refuses_with_the_reason(rank_count):
    gpu = own_gpu()
    _, optimizer, step = training(gpu)
    data = batches(gpu, 1)[0]

    def looks_at_the_loss(x: torch.Tensor, y: torch.Tensor) -> float:
        return step(x, y).item()

    with pytest.raises(RuntimeError, match="the step cannot be captured: rank 0: "):
        hvd.capture(looks_at_the_loss, *data, optimizer=optimizer)
    with pytest.raises(ValueError, match="inputs, all on the GPU"):
        hvd.capture(step, torch.zeros(2), optimizer=optimizer)
    assert hvd.capture(step, *data, optimizer=optimizer)(*data).item() > 0


@ranks(2)
def test_gpu_capture_needs_nccl(rank_count):
    if torch.cuda.device_count() > 1:
        gpu = own_gpu()
        net, optimizer, step = training(gpu)
        data = [(x + hvd.rank(), y) for x, y in batches(gpu, 6)]
        captured = hvd.capture(step, *data[0], optimizer=optimizer)
        for batch in data:
            captured(*batch)
        for parameter in net.parameters():
            both = hvd.allgather(parameter.detach().reshape(1, -1))
            assert torch.equal(both[0], both[1])
        return
    gpu = own_gpu()
    _, optimizer, step = training(gpu)
    with pytest.raises(RuntimeError, match="ranks 0 and 1 use the same GPU"):
        hvd.capture(step, *batches(gpu, 1)[0], optimizer=optimizer)
