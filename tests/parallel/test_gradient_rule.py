"""At `step()` every gradient is the reduced one (docs/gradients.md): C93, C119."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


def sgd(parameters, **options) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), **options)


def ones(count: int, size: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(size, dtype=torch.float64)) for _ in range(count)]


def mine() -> float:
    """A factor that differs by rank."""
    return hvd.rank() + 1.0


def mean() -> float:
    return (hvd.size() + 1) / 2


def check_alike(*tensors: torch.Tensor) -> None:
    values = [tensor.detach().tolist() for tensor in tensors]
    assert all(other == values for other in hvd.allgather_object(values)), values


@ranks(2, 3)
def test_parameters_in_another_order_on_one_rank(rank_count):
    """As `list(set(parameters))` gives them."""
    weights = dict(zip("abcd", ones(4), strict=True))
    order = "acbd" if hvd.rank() == rank_count - 1 else "abcd"
    optimizer = sgd([weights[name] for name in order], named_parameters=list(weights.items()))
    for _ in range(3):
        optimizer.zero_grad()
        (1 * weights["a"] + 10 * weights["b"] + 1000 * weights["c"] + 7 * weights["d"]).backward()
        assert [weights[name].grad.item() for name in "abcd"] == [1, 10, 1000, 7]
        optimizer.step()


@ranks(2, 3)
def test_ranks_with_other_parameters_are_refused_by_name(rank_count):
    first, second = ones(2)
    last = hvd.rank() == rank_count - 1
    optimizer = sgd([first, second], named_parameters=[("a", first), ("x" if last else "b", second)])
    with pytest.raises(hvd.HorovodInternalError, match=r"(?s)only rank.* has x|lacks? b"):
        (first + second).sum().backward()
    wide = ones(1, 2 if last else 3)[0]
    optimizer = sgd([wide], named_parameters=[("wide", wide)])
    with pytest.raises(hvd.HorovodInternalError, match=r"parameter wide is \(.\,\) float64 cpu on rank"):
        wide.sum().backward()
    hvd.barrier()
    del optimizer


@ranks(2, 3)
def test_unfrozen_between_zero_grad_and_backward(rank_count):
    frozen, other = ones(2)
    frozen.requires_grad_(False)
    optimizer = sgd([frozen, other])
    for epoch in range(4):
        if epoch == 2:
            frozen.requires_grad_(True)
        ((frozen + other) * mine()).sum().backward()
        assert frozen.grad is None or frozen.grad.item() == mean()
        optimizer.step()
        optimizer.zero_grad()
    assert frozen.item() == 1 - 2 * mean() and other.item() == 1 - 4 * mean()


@ranks(2, 3)
def test_group_added_before_backward(rank_count):
    first, added = ones(2)
    optimizer = sgd([first])
    for epoch in range(4):
        if epoch == 2:
            optimizer.add_param_group({"params": [added]})
        ((first + added) * mine()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        added.grad = None
    assert added.item() == 1 - 2 * mean() and first.item() == 1 - 4 * mean()


@ranks(2, 3)
def test_tensor_of_a_group_replaced(rank_count):
    """By a longer one, as Gaussian splatting does, and by one of the same shape."""
    parameter, other = ones(2, 2)
    optimizer = sgd([parameter, other])
    for step in range(6):
        group = optimizer.param_groups[0]["params"]
        if step == 2:
            parameter = group[0] = torch.nn.Parameter(torch.cat([parameter.detach(), parameter.detach()]))
        if step == 4:
            parameter = group[0] = torch.nn.Parameter(parameter.detach().clone())
        optimizer.zero_grad()
        ((parameter.sum() + other.sum()) * mine()).backward()
        optimizer.step()
    assert parameter.tolist() == [1 - 6 * mean()] * 4 and other.tolist() == [1 - 6 * mean()] * 2


@ranks(2, 3)
def test_parameters_appended_to_the_first_of_two_groups(rank_count):
    first, last, added = ones(3)
    optimizer = sgd([{"params": [first]}, {"params": [last]}])
    for step in range(4):
        if step == 2:
            optimizer.param_groups[0]["params"].append(added)
        optimizer.zero_grad()
        ((first + 2 * last + 3 * added) * mine()).sum().backward()
        optimizer.step()
        added.grad = None
    assert [p.item() for p in (first, last, added)] == [1 - 4 * mean(), 1 - 8 * mean(), 1 - 6 * mean()]


@ranks(2, 3)
def test_group_swapped_for_one_of_equal_size(rank_count):
    old, new, kept = ones(3)
    optimizer = sgd([{"params": [old]}, {"params": [kept]}])
    for step in range(4):
        if step == 2:
            optimizer.param_groups[0] = {**optimizer.param_groups[0], "params": [new]}
        optimizer.zero_grad()
        ((old + new + kept) * mine()).sum().backward()
        optimizer.step()
        old.grad = new.grad = None
    assert [p.item() for p in (old, new, kept)] == [1 - 2 * mean(), 1 - 2 * mean(), 1 - 4 * mean()]


@ranks(2, 3)
@pytest.mark.parametrize("explicit", (True, False))
def test_gradients_set_by_hand_after_backward(rank_count, explicit):
    a, b = ones(2)
    optimizer = sgd([a, b])
    for step in range(3):
        optimizer.zero_grad()
        (a * mine()).sum().backward()
        b.grad = torch.full((1,), 10 * mine(), dtype=torch.float64)
        if explicit:
            optimizer.synchronize()
            assert b.grad.item() == 10 * mean()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        assert (a.item(), b.item()) == (1 - (step + 1) * mean(), 1 - (step + 1) * 10 * mean())
    optimizer.zero_grad()
    b.grad = torch.ones_like(b)
    with optimizer.skip_synchronize(), pytest.raises(RuntimeError, match=r"gradient of noname\.0\.1, which was not"):
        optimizer.step()


@ranks(2, 3)
def test_all_gradients_by_hand(rank_count):
    a, b = ones(2, 3)
    optimizer = sgd([a, b])
    for _ in range(3):
        a.grad, b.grad = torch.autograd.grad(((a + 2 * b) * mine()).sum(), (a, b))
        optimizer.step()
    assert a.tolist() == [1 - 3 * mean()] * 3 and b.tolist() == [1 - 6 * mean()] * 3


@ranks(2, 3)
def test_gradients_replaced_after_backward(rank_count):
    """By tensors of the same values; a sum must not be added up a second time."""
    (a,) = ones(1)
    optimizer = sgd([a])
    for _ in range(3):
        optimizer.zero_grad()
        (a * mine()).sum().backward()
        a.grad = a.grad * 0.5
        optimizer.step()
    assert a.item() == 1 - 1.5 * mean()
    optimizer = sgd([a], op=hvd.Sum)
    optimizer.zero_grad()
    (a * mine()).sum().backward()
    a.grad = a.grad.detach()  # the same memory
    optimizer.step()
    optimizer.zero_grad()
    (a * mine()).sum().backward()
    a.grad = a.grad * 0.5
    with pytest.raises(RuntimeError, match=r"noname\.0\.0\.grad was replaced after it had been reduced"):
        optimizer.step()
    hvd.barrier()


@ranks(2, 3)
def test_sums_that_are_never_cleared(rank_count):
    a, b = ones(2)
    optimizer = sgd([a, b], op=hvd.Sum)
    for clear in (lambda p: p.grad.zero_(), lambda p: p.grad.data.zero_(), lambda p: setattr(p, "grad", None)):
        ((a + b) * mine()).sum().backward()
        optimizer.step()
        clear(a)
        clear(b)
    assert a.item() == b.item() == 1 - 3 * mean() * rank_count
    ((a + b) * mine()).sum().backward()
    optimizer.step()
    with pytest.raises(AssertionError, match="still holds the sum of the step before"):
        ((a + b) * mine()).sum().backward()
    hvd.barrier()


@ranks(2, 3)
def test_hook_registered_late(rank_count):
    """It is refused at every step alike, whichever way the gradients go."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = sgd(model.parameters(), named_parameters=model.named_parameters())
    active = [False]

    def late(parameter):
        if active[0]:
            parameter.grad.mul_(3)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(late)
    for step in range(9):
        active[0] = step in (0, 6, 8)
        optimizer.zero_grad()
        if active[0] and step:
            with pytest.raises(RuntimeError, match="was replaced or changed during backward"):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.zero_grad()
            continue
        # In the first step nothing is sent before backward ends, so that what a late hook wrote is reduced.
        (model(torch.ones(2, 4)).sum() * mine()).backward()
        assert model[1].bias.grad.tolist() == [(6 if active[0] else 2) * mean()] * 4
        with torch.no_grad():
            optimizer.step()
        torch.nn.init.ones_(model[1].bias)


@ranks(2, 3)
def test_stepping_in_a_hook(rank_count):
    """C93: the hook was there before the optimizer, and clears its gradients."""
    a, b = ones(2)
    optimizers = {}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in (a, b):
        parameter.register_post_accumulate_grad_hook(step)
        optimizers[parameter] = sgd([parameter])
    for number in range(1, 5):
        ((a + 2 * b) * mine()).sum().backward()
        assert (a.item(), b.item()) == (1 - number * mean(), 1 - number * 2 * mean())


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, parameter):
        return x + parameter

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@ranks(2, 3)
def test_a_function_that_returns_none(rank_count):
    a, b = ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], 0.5, weight_decay=0.5, momentum=0.9))
    for _ in range(4):
        optimizer.zero_grad()
        NoGradient.apply(a * mine(), b).sum().backward()
        assert b.grad is None
        optimizer.step()
    assert b.item() == 1.0
    check_alike(a)


@ranks(2, 3)
@pytest.mark.parametrize("options", ({}, {"groups": 1}, {"compression": hvd.Compression.bf16}), ids=str)
def test_none_stays_none_where_no_rank_has_a_gradient(rank_count, options):
    """Two heads take turns; then rank 0 alone uses the second one, so that it counts as zeros elsewhere."""

    def run(parameters, optimizer, joined):
        a, b = parameters
        for step in range(8):
            optimizer.zero_grad()
            share = 1 / hvd.size() if joined else float(hvd.rank() == 0)
            if step < 4 or step == 7:
                (a if step % 2 == 0 else b).sum().backward()
            elif step % 2 == 0:
                (a + b * share).sum().backward() if share else a.sum().backward()
            else:
                a.sum().backward()
            assert (a.grad is None) == (step in (1, 3, 7)) and (b.grad is None) == (step in (0, 2, 5)), step
            optimizer.step()

    parameters, expected = ones(2, 3), ones(2, 3)
    adam = {"lr": 0.1, "weight_decay": 0.1}
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(parameters, **adam), **options)
    run(parameters, optimizer, False)
    run(expected, torch.optim.Adam(expected, **adam), True)
    for own, right in zip(parameters, expected, strict=True):
        assert (own - right).abs().max() < (1e-12 if "compression" not in options else 1e-2)
    check_alike(*parameters)


@ranks(2, 3)
def test_sparse_none_stays_none(rank_count):
    torch.manual_seed(1)
    layer, other = torch.nn.Embedding(5, 2, sparse=True), ones(1)[0]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([layer.weight, other], 0.1), groups=[[other, layer.weight]])
    for step in range(5):
        optimizer.zero_grad()
        loss = (other * mine()).sum()
        if step in (0, 3) or (step == 1 and hvd.rank() == 0):
            loss = loss + layer(torch.tensor([hvd.rank()])).sum()
        loss.backward()
        assert other.grad.item() == mean()
        assert (layer.weight.grad is None) == (step in (2, 4))
        if step == 1:
            assert layer.weight.grad.to_dense()[0].tolist() == pytest.approx([1 / rank_count] * 2)
        optimizer.step()
    check_alike(layer.weight)


@ranks(2, 3)
def test_views_of_one_flat_buffer(rank_count):
    """As Megatron and apex keep gradients."""
    a, b = ones(2, 4)
    flat = torch.zeros(8, dtype=torch.float64)
    a.grad, b.grad = flat[:4], flat[4:]
    optimizer = sgd([a, b])
    for step in range(4):
        flat.zero_()
        ((a + 2 * b) * mine()).sum().backward()
        assert flat.tolist() == [mean()] * 4 + [2 * mean()] * 4, step
        optimizer.step()
    assert a.tolist() == [1 - 4 * mean()] * 4


@ranks(2, 3)
def test_two_optimizers_whose_parameters_have_the_same_names(rank_count):
    """A GAN: the generator's backward makes gradients of both, in an order that threads decide."""
    torch.manual_seed(3)
    one, two = (torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)) for _ in range(2))
    first, second = (sgd(net.parameters(), named_parameters=net.named_parameters()) for net in (one, two))
    for _ in range(6):
        second.zero_grad()
        (two(torch.randn(4, 8)).mean() - two(one(torch.randn(4, 8)).detach()).mean()).backward()
        second.step()
        first.zero_grad()
        two(one(torch.randn(4, 8))).mean().backward()
        first.step()
    check_alike(*one.parameters(), *two.parameters())


@ranks(2, 3)
@pytest.mark.parametrize("named", (True, False))
@pytest.mark.parametrize("shared", (True, False))
def test_parameters_added_to_two_optimizers(rank_count, named, shared):
    """Both are the third of their optimizer, and have different names in the core."""
    held = [ones(2), ones(2)]
    if shared:
        held[1] = held[0]
    names = [list(zip(names, parameters, strict=True)) for names, parameters in zip(("ab", "cd"), held, strict=True)]
    pair = [sgd(own, named_parameters=n if named else None) for own, n in zip(held, names, strict=True)]
    new = ones(2)
    for _ in range(3):
        for optimizer in pair:
            optimizer.zero_grad()
        (sum(held[0]) + sum(held[1]) + 2 * new[0] + 4 * new[1]).mul(mine()).sum().backward()
        for optimizer in pair:
            optimizer.step()
        if len(pair[0].param_groups) == 1:
            for optimizer, parameter in zip(pair, new, strict=True):
                optimizer.add_param_group({"params": [parameter]})
    assert [parameter.item() for parameter in new] == [1 - 4 * mean(), 1 - 8 * mean()]
    assert all(p.item() == 1 - 3 * mean() * (4 if shared else 1) for p in held[0])


@ranks(2, 3)
@pytest.mark.parametrize("set_to_none", (True, False))
@pytest.mark.parametrize("op", (hvd.Average, hvd.Sum), ids=str)
def test_overlapping_optimizers_that_take_turns(rank_count, op, set_to_none):
    a, b, c = ones(3)
    factor = mean() * (rank_count if op == hvd.Sum else 1)
    first, second = sgd([a, b], op=op), sgd([b, c], op=op)
    for step in range(6):
        optimizer = (first, second)[step % 2]
        for other in (first, second):
            other.zero_grad(set_to_none=set_to_none)
        ((a + 2 * b + 3 * c) * mine()).sum().backward()
        optimizer.step()
        assert b.item() == 1 - 2 * (step + 1) * factor
    assert (a.item(), c.item()) == (1 - 3 * factor, 1 - 9 * factor)
    both = ones(2)
    first, second = sgd(both, op=op), sgd(both, op=op)
    for step in range(6):
        optimizer = (first, second)[step // 2 % 2]
        optimizer.zero_grad(set_to_none=set_to_none)
        ((both[0] + both[1]) * mine()).sum().backward()
        optimizer.step()
        assert both[0].item() == both[1].item() == 1 - (step + 1) * factor
    del first, second


@ranks(2)
def test_the_first_step_sends_buckets(rank_count):
    from sirtaki.native import core

    parameters = ones(2000)
    optimizer = sgd(parameters)
    before = core.statistics()
    sum(parameters).backward()
    optimizer.step()
    sent = {key: value - before[key] for key, value in core.statistics().items()}
    assert sent["messages"] < 100 and sent["batches"] < 10, sent


@ranks(2, 3)
def test_batch_norm_in_evaluation_mode_needs_no_other_rank(rank_count):
    layer = hvd.SyncBatchNorm(4, track_running_stats=False)
    plain = torch.nn.BatchNorm1d(4, track_running_stats=False)
    layer.eval()
    if hvd.rank() == 0:
        x = torch.randn(3, 4)
        torch.testing.assert_close(layer(x), plain(x))
    hvd.barrier()
