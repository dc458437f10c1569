"""Gradients that the hooks send by themselves, and everything that must make them stop doing so."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ranks import ranks
from torch.utils.checkpoint import checkpoint
from training import batch, check_equal, distributed, make_model, part_of

import sirtaki.torch as hvd
from sirtaki.torch.gradients import buckets, packing

Step = Callable[[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor, int], None]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", {"cpu": 400})


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def backward(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(model(x), y).backward()


def equals_serial(step: Step, steps: int = 6, **options) -> list[int]:
    """Checks the step on all ranks against one process. How often Python packed a bucket, by step."""
    model, expected = make_model(), make_model()
    if step is replaces_gradients:
        replace_gradients(model)
        replace_gradients(expected)
    optimizer, reference = distributed(model, **options), sgd(expected.parameters())
    sent: list[int] = []
    send = packing.send_packed

    def counted(*args: object) -> None:
        sent[-1] += 1
        send(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sirtaki.torch.gradients.reducer.send_packed", counted)
        for number in range(steps):
            sent.append(0)
            step(model, optimizer, *part_of(number), number)
    for number in range(steps):
        step(expected, reference, *batch(number), number)
    check_equal(model, expected)
    return sent


def plain(model, optimizer, x, y, number) -> None:
    optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()


def kept_gradients(model, optimizer, x, y, number) -> None:
    optimizer.zero_grad(set_to_none=False)
    backward(model, x, y)
    optimizer.step()


def two_places(model, optimizer, x, y, number) -> None:
    """The line of the call is part of what ranks compare."""
    optimizer.zero_grad()
    if number % 2:
        F.cross_entropy(model(x), y).backward()
    else:
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


def in_a_thread(model, optimizer, x, y, number) -> None:
    optimizer.zero_grad()
    thread = threading.Thread(target=backward, args=(model, x, y))
    thread.start()
    thread.join()
    optimizer.step()


def checkpointed(reentrant: bool) -> Step:
    def step(model, optimizer, x, y, number) -> None:
        optimizer.zero_grad()
        hidden = model[:2](x)
        F.cross_entropy(model[4:](model[3](checkpoint(model[2], hidden, use_reentrant=reentrant))), y).backward()
        optimizer.step()

    return step


def with_graph(model, optimizer, x, y, number) -> None:
    """Gradients that require gradients."""
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.cross_entropy(model(x), y).backward(create_graph=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = parameter.grad.detach()
    optimizer.step()


def fails_once(model, optimizer, x, y, number) -> None:
    """A backward that does not come to its end, at a step that the hooks send, is forgotten."""
    optimizer.zero_grad()
    if number == 3:

        def fail(parameter: torch.Tensor) -> None:
            raise RuntimeError("out of luck")

        hook = model[2].weight.register_post_accumulate_grad_hook(fail)
        with pytest.raises(RuntimeError, match="out of luck"):
            backward(model, x, y)
        hook.remove()
        optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()


def replaces_gradients(model, optimizer, x, y, number) -> None:
    """A hook of the program's, there before ours, makes another tensor of the gradient."""
    model.number = number
    optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()


def replace_gradients(model: torch.nn.Module) -> None:
    def double(parameter: torch.Tensor) -> None:
        if model.number > 2:
            parameter.grad = (parameter.grad.t() * 2).t() if model.number == 4 else parameter.grad * 2

    model[4].weight.register_post_accumulate_grad_hook(double)


def skips(model, optimizer, x, y, number) -> None:
    """Steps that are not taken, and gradients that the program drops by itself."""
    model.zero_grad()
    backward(model, x, y)
    if number % 3:
        optimizer.step()


def partly_frozen(model, optimizer, x, y, number) -> None:
    model[0].requires_grad_(number < 3)
    optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()


def some_inputs(model, optimizer, x, y, number) -> None:
    """Backward to a part of a bucket only, looked at before the rest follows."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if number > 2:
        loss.backward(inputs=[model[4].bias], retain_graph=True)
        first = model[4].bias.grad.clone()
        torch.nn.utils.clip_grad_norm_([model[4].bias], 0.1)
        assert not torch.equal(first, model[4].bias.grad)
        loss.backward(inputs=[p for p in model.parameters() if p is not model[4].bias])
    else:
        loss.backward()
    optimizer.step()


def accumulating(model, optimizer, x, y, number) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        (0.5 * F.cross_entropy(model(x), y)).backward()
    optimizer.step()


@ranks(2)
def test_gradients_are_sent_without_python(rank_count):
    """From the first step on, wherever backward is called."""
    for step in (plain, kept_gradients, in_a_thread, with_graph, checkpointed(False), two_places):
        sent = equals_serial(step)
        assert sent == [0] * 6, (step, sent)
    assert equals_serial(plain, process_set=hvd.global_process_set, gradient_predivide_factor=2.0) == [0] * 6
    assert equals_serial(plain, groups=2) == [0] * 6
    assert equals_serial(accumulating, backward_passes_per_step=2) == [0] * 6


@ranks(2)
@pytest.mark.parametrize(
    "step",
    (
        checkpointed(True),
        fails_once,
        replaces_gradients,
        skips,
        partly_frozen,
        some_inputs,
    ),
    ids=("checkpoint", "fails", "replaces", "skips", "frozen", "inputs"),
)
def test_steps_that_differ_give_right_gradients(rank_count, step):
    equals_serial(step)


@ranks(2)
def test_a_gradient_that_is_computed_twice_is_refused(rank_count):
    model = make_model()
    optimizer = distributed(model)
    for number in range(3):
        plain(model, optimizer, *part_of(number), number)
    x, y = part_of(0)
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    kept = [parameter.grad.clone() for parameter in model.parameters()]
    with pytest.raises(AssertionError, match="computed more than backward_passes_per_step"):
        loss.backward(inputs=[model[0].weight])
    assert torch.equal(model[2].weight.grad, kept[2])
    hvd.barrier()


@ranks(2)
def test_several_optimizers_and_compiled_models(rank_count):
    model, expected = make_model(), make_model()
    first, reference = distributed(model), sgd(expected.parameters())
    for number in range(3):
        plain(model, first, *part_of(number), number)
        plain(expected, reference, *batch(number), number)
    second = hvd.DistributedOptimizer(torch.optim.SGD(model[4].parameters(), 0.1))  # takes these over
    x, y = part_of(3)
    for optimizer in (first, second):
        optimizer.zero_grad()
    backward(model, x, y)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    expected.zero_grad()
    backward(expected, *batch(3))
    for own, right in zip(gradients, expected.parameters(), strict=True):
        assert (own - right.grad).abs().max() < 1e-10
    model, expected = make_model(), make_model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer, reference = distributed(model), sgd(expected.parameters())
    for number in range(4):
        plain(compiled, optimizer, *part_of(number), number)
        plain(expected, reference, *batch(number), number)
    check_equal(model, expected)
