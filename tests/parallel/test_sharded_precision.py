"""A sharded optimizer with numbers of 16 bits, a gradient scaler, and what it holds in bytes."""

import gc

import pytest
import torch
from ranks import ranks
from sharded_training import SmallNet, adamw, check_same_bits, data, distributed, sgd, sharded, train

import sirtaki.torch as hvd
from sirtaki.torch.sharding.guard import GuardedGradient


@ranks(2, 3)
def test_wire_of_16_bits(rank_count):
    """Gradients that travel in 16 bits are rounded in the same way with and without sharding."""
    for wire in (hvd.Compression.bf16, hvd.Compression.fp16):
        model, expected = SmallNet(), SmallNet()
        train(expected, distributed(expected, compression=wire), range(10))
        train(model, sharded(model, compression=wire, free_gradients=wire is hvd.Compression.fp16), range(10))
        check_same_bits(model, expected)


@ranks(1, 2)
def test_parameters_of_16_bits_get_master_weights(rank_count):
    """The steps are those of float32 weights on averaged gradients of 16 bits; each forward rounds the weights."""
    dtype = torch.bfloat16
    model, rounded, master = SmallNet(dtype), SmallNet(dtype), SmallNet(dtype).float()
    optimizer, reference = sharded(model), adamw(master)

    def step_of_reference(step):
        rounded.zero_grad()
        rounded(data(step, dtype=dtype)).square().mean().backward()
        for half, whole in zip(rounded.parameters(), master.parameters(), strict=True):
            whole.grad = None if half.grad is None else hvd.allreduce(half.grad).float()
        reference.step()
        for half, whole in zip(rounded.parameters(), master.parameters(), strict=True):
            half.data.copy_(whole.data)

    for step in range(20):
        step_of_reference(step)
        train(model, optimizer, [step])
    check_same_bits(model, rounded)

    saved = hvd.broadcast_object(optimizer.state_dict())  # with master weights: a training goes on with the same bits
    assert torch.equal(saved["state"][0]["master_weight"], master.first.weight)
    again = SmallNet(dtype)
    again.load_state_dict(model.state_dict())
    resumed = sharded(again)
    resumed.load_state_dict(saved)
    for step in range(20, 30):
        step_of_reference(step)
        train(again, resumed, [step])
    check_same_bits(again, rounded)
    again.first.weight.data.zero_()  # the master weights follow what the program writes, and what a collective writes
    again.a.weight.data.fill_(hvd.rank())
    hvd.broadcast_parameters(again.state_dict(), root_rank=hvd.size() - 1)
    resumed.zero_grad()
    resumed.param_groups[0]["lr"] = resumed.param_groups[1]["lr"] = 0.0
    train(again, resumed, [30])
    assert not again.first.weight.any() and (again.a.weight == hvd.size() - 1).all()


@ranks(2)
def test_gradient_scaler(rank_count):
    """An overflow on one rank, in elements that belong to the other rank, skips the step on both."""

    def run(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            loss = scaler.scale(model(data(step)).square().mean())
            if step == 3 and hvd.rank() == 0:
                loss = loss + model.first.weight[0, 0] * float("inf")
            loss.backward()
            if step > 3:
                scaler.unscale_(optimizer)
                if hasattr(optimizer, "clip_grad_norm"):
                    assert optimizer.clip_grad_norm(1e9) > 0
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    for make in (sgd, fused_adam):
        model, expected = SmallNet(), SmallNet()
        assert run(model, sharded(model, make)) == run(expected, distributed(expected, make)) == [4, 8, 8, 4, 4, 8]
        check_same_bits(model, expected)


def fused_adam(model):
    return torch.optim.Adam(model.parameters(), 1e-2, fused=True)


class Wide(torch.nn.Module):
    """4 layers that divide evenly, far larger than what else is alive."""

    def __init__(self, dtype):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(960, 960, bias=False) for _ in range(4))
        self.to(dtype)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def bytes_of_tensors() -> int:
    """Of all tensors of this process that were made since gc.freeze() and are alive."""
    gc.collect()
    found = {}
    for entry in gc.get_objects():
        if issubclass(type(entry), torch.Tensor) and type(entry) is not GuardedGradient:
            for tensor in (entry, entry.grad if entry.is_leaf else None):
                if tensor is not None and type(tensor) is not GuardedGradient:
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(found.values())


@ranks(1, 2, 3)
def test_bytes_are_those_of_the_formulas(rank_count):
    """Weights, gradients and state for each parameter, between backward and step: within 1%, and padding."""
    n = hvd.size()
    adam, momentum = adamw, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    cases = [
        (torch.float32, adam, False, 8 + 8 / n),
        (torch.float32, adam, True, 4 + 12 / n),
        (torch.bfloat16, adam, False, 4 + 12 / n),
        (torch.bfloat16, adam, True, 2 + 14 / n),
        (torch.float32, momentum, False, 8 + 4 / n),
    ]
    for dtype, make, free, expected in cases:
        gc.freeze()
        model = Wide(dtype)
        optimizer = sharded(model, lambda model, make=make: only_matrices(model, make), free_gradients=free)
        for step in range(2):  # the first step makes the state
            optimizer.zero_grad()
            model(torch.ones(1, 960, dtype=dtype)).sum().backward()
            held = bytes_of_tensors() if step else 0
            optimizer.step()
        count = sum(p.numel() for p in model.parameters())
        gc.unfreeze()
        assert held / count == pytest.approx(expected, rel=0.01), (dtype, make, free)
        del model, optimizer


def only_matrices(model, make):
    return torch.optim.AdamW(model.parameters(), 1e-3) if make is adamw else make(model)
