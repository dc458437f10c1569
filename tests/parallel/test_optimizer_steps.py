"""What may happen within a step: unused parameters, accumulation, several losses, scalers, closures."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from ranks import WORKER, ranks
from training import batch, check_equal, check_same_on_ranks, distributed, make_model, part_of, serial, train

import sirtaki.torch as hvd
from sirtaki.native import core
from sirtaki.torch.gradients.slots import REDUCED, SENT


class TwoBranches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.common, self.never = (torch.nn.Linear(4, 4).double() for _ in range(4))

    def forward(self, x: torch.Tensor, branch: str) -> torch.Tensor:
        return self.common(getattr(self, branch)(x)).square().mean()


@ranks(2)
@pytest.mark.parametrize("groups", (None, 3), ids=str)
def test_unused_parameters(rank_count, groups):
    """C43: A on rank 0 only, B on rank 1 only, freezing half way; weight decay and momentum make None differ from 0."""
    x = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def make(parameters):
        return torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1)

    def freeze(model, step):
        model.common.weight.requires_grad_(step < 3)

    model, expected = TwoBranches(), TwoBranches()
    optimizer = distributed(model, make, groups=groups)
    reference = make(expected.parameters())
    for step in range(6):
        freeze(model, step)
        optimizer.zero_grad()
        model(x[hvd.rank()], "ab"[hvd.rank()]).backward()
        optimizer.step()
        freeze(expected, step)
        reference.zero_grad()
        (0.5 * (expected(x[0], "a") + expected(x[1], "b"))).backward()
        reference.step()
    check_equal(model, expected)
    if groups is None:
        assert model.never.weight.grad is None


@ranks(2)
def test_a_rank_without_a_batch_counts_as_zero(rank_count):
    model, expected = make_model(), make_model()
    optimizer, reference = distributed(model), torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        reference.zero_grad()
        x, y = batch(step)
        if hvd.rank() == 0 or step in (1, 2):
            F.cross_entropy(model(x), y).backward()
        (F.cross_entropy(expected(x), y) * (1.0 if step in (1, 2) else 0.5)).backward()
        optimizer.step()
        reference.step()
    check_equal(model, expected)


@ranks(2)
def test_parameter_used_several_times_and_unfrozen_later(rank_count):
    def make():
        torch.manual_seed(4)
        model = torch.nn.ModuleList([torch.nn.Linear(3, 3).double(), torch.nn.Linear(3, 3).double()])
        model[1].requires_grad_(False)
        return model

    def loss(model, x):
        return model[1](model[0](model[0](x))).square().mean()

    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    model, expected = make(), make()
    optimizer, reference = distributed(model), torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for step in range(5):
        if step == 2:
            model[1].requires_grad_(True)
            expected[1].requires_grad_(True)
        optimizer.zero_grad()
        loss(model, x[hvd.rank()]).backward()
        optimizer.step()
        reference.zero_grad()
        (0.5 * (loss(expected, x[0]) + loss(expected, x[1]))).backward()
        reference.step()
    check_equal(model, expected)


@ranks(2)
def test_accumulation_with_leftovers(rank_count):
    """C32: 10 batches, accumulation 4, 3 epochs; the last two batches of an epoch make a step of their own."""
    model, expected = make_model(), make_model()
    optimizer = distributed(model, backward_passes_per_step=4)
    reference = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for net, opt, data in ((model, optimizer, part_of), (expected, reference, batch)):
        for epoch in range(3):
            for i in range(10):
                x, y = data(100 * epoch + i)
                (F.cross_entropy(net(x), y) / 4).backward()
                if i % 4 == 3 or i == 9:
                    opt.step()
                    opt.zero_grad()
    check_equal(model, expected)


@ranks(2)
def test_passes_that_are_too_many_or_forgotten(rank_count):
    model = make_model()
    optimizer = distributed(model, backward_passes_per_step=2)

    def backward():
        x, y = part_of(0)
        F.cross_entropy(model(x), y).backward()

    backward()
    optimizer.zero_grad()  # forgets the pass
    before = core.statistics()["tensors"]
    backward()
    assert core.statistics()["tensors"] == before
    backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        backward()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    train(model, optimizer, part_of, 2)
    check_same_on_ranks(model)


@ranks(2)
def test_dropping_gradients_without_the_optimizer(rank_count):
    """A skipped step, then `p.grad = None` or model.zero_grad() instead of the optimizer's zero_grad."""
    model, expected = make_model(), make_model()
    optimizer, reference = distributed(model), torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for net, opt, data in ((model, optimizer, part_of), (expected, reference, batch)):
        for step in range(4):
            net.zero_grad()
            x, y = data(step)
            F.cross_entropy(net(x), y).backward()
            if step != 1:
                opt.step()
    check_equal(model, expected)


@ranks(2)
def test_two_losses_one_after_the_other(rank_count):
    """Backward twice in a step, each through other parameters."""

    def make():
        torch.manual_seed(4)
        return torch.nn.ModuleList([torch.nn.Linear(3, 3).double() for _ in range(2)])

    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    model, expected = make(), make()
    optimizer, reference = distributed(model), torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        for layer in model:
            layer(x[hvd.rank()]).square().mean().backward()
        optimizer.step()
        reference.zero_grad()
        for layer in expected:
            (0.5 * (layer(x[0]).square().mean() + layer(x[1]).square().mean())).backward()
        reference.step()
    check_equal(model, expected)


@ranks(2)
def test_reentrant_checkpoint(rank_count):
    from torch.utils.checkpoint import checkpoint

    model = make_model()
    optimizer = distributed(model)
    for step in range(3):
        optimizer.zero_grad()
        x, y = part_of(step)
        hidden = checkpoint(model[:3], x.requires_grad_(), use_reentrant=True)
        F.cross_entropy(checkpoint(model[3:], hidden, use_reentrant=True), y).backward()
        optimizer.step()
    check_equal(model, serial(3))


@ranks(2)
def test_the_end_of_a_backward_without_parameters_of_its_own(rank_count):
    """All parameters are in checkpoints, also nested ones: gradients are reduced when the outer backward returns."""
    from torch.utils.checkpoint import checkpoint

    model = make_model()
    optimizer = distributed(model)

    def inner(x):
        return checkpoint(model, x, use_reentrant=True)

    for step in range(3):
        optimizer.zero_grad()
        x, y = part_of(step)
        F.cross_entropy(checkpoint(inner, x.requires_grad_(), use_reentrant=True), y).backward()
        assert {unit.state for unit in optimizer._distributed.reducer.buckets} == {REDUCED}
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        optimizer.step()
    expected = make_model()
    reference = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        reference.zero_grad()
        x, y = batch(step)
        (0.5 * F.cross_entropy(expected(x), y)).backward()
        reference.step()
    check_equal(model, expected)


@ranks(2)
def test_gradients_changed_during_backward(rank_count):
    """Hooks that come after the optimizer's, whose results would be neither reduced nor equal on all ranks."""
    model = make_model()
    optimizer = distributed(model)

    def backward(step):
        x, y = part_of(step)
        F.cross_entropy(model(x), y).backward()

    backward(0)  # the first gradients are sent when backward has ended, after all hooks
    optimizer.step()

    def write(parameter):
        parameter.grad.mul_(2)

    def replace(parameter):
        parameter.grad = parameter.grad * 2

    for hook in (write, replace):
        added = [parameter.register_post_accumulate_grad_hook(hook) for parameter in model.parameters()]
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match=r"grad was replaced or changed during backward"):
            backward(0)
        for each in added:
            each.remove()
        for step in range(3):  # from here on gradients are sent without Python
            optimizer.zero_grad()
            backward(step)
            optimizer.step()
    check_same_on_ranks(model)
    added = model[0].weight.register_hook(lambda gradient: 1 / 0)
    optimizer.zero_grad()
    with pytest.raises(ZeroDivisionError):
        backward(0)
    added.remove()
    model.zero_grad()
    optimizer.zero_grad()  # of a step that is given up anything may have become
    backward(0)
    optimizer.step()
    check_same_on_ranks(model)


@ranks(2)
@pytest.mark.filterwarnings("ignore:Using backward. with create_graph")
def test_sums_are_not_counted_twice(rank_count):
    """Two backwards in one step with create_graph, where each makes new gradients."""
    for op in (hvd.Average, hvd.Sum):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [(f"w{op}", weight)], op=op)
        optimizer.zero_grad()
        (weight.square().sum() * (hvd.rank() + 1)).backward(create_graph=True)
        if op == hvd.Sum:
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                (weight.square().sum() * (hvd.rank() + 1)).backward(create_graph=True)
        else:
            (weight.square().sum() * (hvd.rank() + 1)).backward(create_graph=True)
            assert torch.equal(weight.grad, torch.full_like(weight, 6.0))
        weight.grad = None


@ranks(2)
def test_an_interrupted_wait_goes_on(rank_count):
    """Rank 0 is interrupted while it waits for rank 1; its step then still waits for the gradients."""
    model = make_model()
    optimizer = distributed(model)
    told = Path(os.environ[WORKER]) / "interrupted"

    def interrupt(number, frame):
        if frame.f_code.co_name == "_wait":
            signal.setitimer(signal.ITIMER_REAL, 0)
            told.touch()
            raise KeyboardInterrupt

    def is_late(gradient):
        while hvd.rank() == 1 and not told.exists():
            time.sleep(0.01)

    earlier = signal.signal(signal.SIGALRM, interrupt)
    for step in range(4):  # what the last one sends is prepared
        optimizer.zero_grad()
        x, y = part_of(step)
        out = model(x)
        if step not in (1, 3):
            F.cross_entropy(out, y).backward()
        else:
            out.register_hook(is_late)
            if hvd.rank() == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            with pytest.raises(KeyboardInterrupt) if hvd.rank() == 0 else contextlib.nullcontext():
                F.cross_entropy(out, y).backward()
            units = optimizer._distributed.reducer.buckets
            assert {unit.state for unit in units} == ({SENT} if hvd.rank() == 0 else {REDUCED})
            hvd.barrier()
            told.unlink(missing_ok=True)
            hvd.barrier()
        optimizer.step()
    signal.signal(signal.SIGALRM, earlier)
    check_equal(model, serial(4))


@ranks(2)
def test_gradient_scaler_loop(rank_count):
    """C30: rank 1 alone has an infinity; both skip the step, and the standard loop goes on."""
    model, expected = make_model().float(), make_model().float()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    optimizer = distributed(model, lambda p: torch.optim.SGD(p, 0.1))
    for step in range(4):
        optimizer.zero_grad()
        x, y = part_of(step)
        loss = F.cross_entropy(model(x.float()), y)
        if step == 1 and hvd.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    reference = torch.optim.SGD(expected.parameters(), 0.1)
    for step in (0, 2, 3):
        reference.zero_grad()
        x, y = batch(step)
        F.cross_entropy(expected(x.float()), y).backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
        reference.step()
    check_equal(model, expected, tolerance=1e-5)


@ranks(2)
def test_closures(rank_count):
    """C29: LBFGS evaluates as often as it likes, alike on all ranks; SGD with a closure equals the plain loop."""
    for make in (
        lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5, line_search_fn="strong_wolfe"),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    ):
        model, expected = make_model(), make_model()
        for net, opt, data in (
            (model, distributed(model, make), part_of),
            (expected, make(expected.parameters()), batch),
        ):
            for step in range(3):

                def closure(net=net, opt=opt, data=data, step=step):
                    opt.zero_grad()
                    x, y = data(step)
                    loss = F.cross_entropy(net(x), y)
                    loss.backward()
                    return loss

                opt.step(closure)
        check_equal(model, expected, tolerance=1e-7)
