"""What a sharded optimizer refuses: at the call with the value, or later on all ranks."""

import pytest
import torch
from ranks import ranks
from sharded_training import SmallNet, adamw, check_same_bits, data, distributed, sgd, sharded, train

import sirtaki.torch as hvd


class LAMB(torch.optim.SGD):
    """Refused by its name."""


class TrustRatio(torch.optim.Optimizer):
    """Scales by the norm of the parameter, as LARS does, under a name that nobody knows."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * parameter.norm() / parameter.grad.norm(), alpha=group["lr"])


class Lion(torch.optim.Optimizer):
    """An elementwise optimizer that nobody knows."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(momentum.lerp(p.grad, 0.1).sign(), alpha=group["lr"])
                momentum.lerp_(p.grad, 0.01)


@ranks(2)
def test_refused_at_the_call(rank_count):
    model = SmallNet()
    cases = [
        (lambda m: LAMB(m.parameters(), 0.1), {}, "got LAMB: it scales by the norm of the whole parameter"),
        (lambda m: torch.optim.LBFGS(m.parameters()), {}, "got LBFGS: it uses products over all parameters"),
        (lambda m: torch.optim.Adafactor(m.parameters()), {}, "got Adafactor: it factors the second moment"),
        (lambda m: torch.optim.SparseAdam(m.parameters()), {}, "got SparseAdam: it takes sparse gradients"),
        (lambda m: TrustRatio(m.parameters(), 0.1), {}, "got TrustRatio: a trial step on two halves"),
        (adamw, {"op": hvd.Adasum}, "op=Adasum cannot be combined"),
        (adamw, {"groups": 2}, "groups=2 cannot be combined"),
        (adamw, {"compression": type("Own", (hvd.Compression.none.__base__,), {})}, "compression=.*Own.* cannot"),
        (adamw, {"free_gradients": 1}, "free_gradients must be True or False, got 1"),
    ]
    for make, options, message in cases:
        with pytest.raises(ValueError, match=message):
            sharded(model, make, **options)
    with pytest.raises(ValueError, match="free_gradients=True needs shard_optimizer_state=True"):
        distributed(model, free_gradients=True)
    with pytest.raises(ValueError, match="shard_optimizer_state must be True or False, got 'yes'"):
        distributed(model, shard_optimizer_state="yes")
    parameter = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"noname\.0\.0 is torch\.complex64"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], 0.1), shard_optimizer_state=True)
    holes = torch.nn.Parameter(torch.zeros(4, 4)[:, :2])
    with pytest.raises(ValueError, match=r"shape \(4, 2\) with strides \(4, 1\)"):
        hvd.DistributedOptimizer(torch.optim.SGD([holes], 0.1), shard_optimizer_state=True)
    with pytest.raises(ValueError, match="sharded already"):
        hvd.DistributedOptimizer(sharded(model))


@ranks(2)
def test_own_elementwise_class_passes_the_trial(rank_count):
    def lion(model):
        return Lion(model.parameters(), 1e-2)

    model, expected = SmallNet(), SmallNet()
    train(model, sharded(model, lion), range(5))
    train(expected, distributed(expected, lion), range(5))
    check_same_bits(model, expected)


@ranks(1, 2)
def test_gradients_that_no_rank_has_whole(rank_count):
    """Reading one is an error, not a wrong number; on one rank the gradient is whole."""
    model = SmallNet()
    optimizer = sharded(model)
    model(data(0)).square().mean().backward()
    if hvd.size() == 1:
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9) == optimizer.clip_grad_norm(1e9)
        return
    assert model.first.weight.grad.shape == (65, 37) and "each rank has its piece" in repr(model.first.weight.grad)
    for use in (
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: model.first.weight.grad.norm(),
        lambda: model.first.weight.grad.mul_(2),
        lambda: model(data(0)).square().mean().backward(),
    ):
        with pytest.raises((RuntimeError, AssertionError), match=r"optimizer\.clip_grad_norm|backward_passes_per_step"):
            use()
    optimizer.zero_grad()
    assert model.first.weight.grad is None
    train(model, optimizer, range(2))
    with pytest.raises(RuntimeError, match="needs the whole gradient"):
        optimizer.step()  # the gradients of the step before
    train(model, optimizer, range(2), before_step=lambda *_: optimizer.clip_grad_value(0.01))


@ranks(2)
def test_gradients_that_do_not_come_from_backward(rank_count):
    """Before backward ends they count; a gradient that replaces a reduced one is refused on all ranks."""
    model = SmallNet()
    optimizer = sharded(model, sgd)
    train(model, optimizer, range(1))
    optimizer.zero_grad()
    model(data(0)).square().mean().backward()
    if hvd.rank() == 0:
        model.a.bias.grad = torch.ones(11)
    with pytest.raises(hvd.SirtakiInternalError, match=r"The ranks disagree on(.|\n)*a\.bias\.grad was replaced"):
        optimizer.step()
    for gradients in optimizer, model:  # all ranks replace it
        gradients.zero_grad()
        model(data(0)).square().mean().backward()
        model.a.bias.grad = torch.ones(11)
        with pytest.raises(RuntimeError, match=r"a\.bias\.grad was set or replaced after backward"):
            optimizer.step()
