"""DistributedOptimizer against a serial run on the joined batch, and what programs do with optimizers."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.native import core

SAMPLES = 12  # on each rank count up to 4 a whole number each


def make_model(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    )
    return model.double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The joined batch of one step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 5, (SAMPLES,), generator=generator)


def part_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(step)
    size = SAMPLES // hvd.size()
    return x[hvd.rank() * size :][:size], y[hvd.rank() * size :][:size]


def train(model, optimizer, data, steps: int = 5, before_step=None) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        x, y = data(step)
        F.cross_entropy(model(x), y).backward()
        if before_step is not None:
            before_step(model, optimizer)
        optimizer.step()


def serial(steps: int = 5, make=None, before_step=None) -> torch.nn.Module:
    """The model after the same steps by one process on the joined batches."""
    model = make_model()
    make = make or (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))
    train(model, make(model.parameters()), batch, steps, before_step)
    return model


def check_equal(model: torch.nn.Module, expected: torch.nn.Module, tolerance: float = 1e-10) -> None:
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert (one - other).abs().max().item() < tolerance, name
    check_same_on_ranks(model)


def check_same_on_ranks(model: torch.nn.Module) -> None:
    """Bit-equal on all ranks."""
    bits = [parameter.detach().contiguous().numpy().tobytes() for parameter in model.parameters()]
    assert all(other == bits for other in hvd.allgather_object(bits))


def distributed(model: torch.nn.Module, make=None, **options):
    make = make or (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))
    return hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(), **options)


@ranks(1, 2, 3, 4)
def test_equals_the_serial_run(rank_count):
    """C36 too: the same global batches on any number of ranks."""
    model = make_model()
    train(model, distributed(model), part_of)
    check_equal(model, serial())


@ranks(2)
@pytest.mark.parametrize(
    "options",
    (
        {"groups": 2},
        {"groups": 100},
        {"gradient_predivide_factor": 3.0},
        {"gradient_predivide_factor": 3.0, "groups": 2},
        {"sparse_as_dense": True},
        {"op": hvd.Average, "process_set": hvd.global_process_set},
    ),
    ids=str,
)
def test_options_do_not_change_the_result(rank_count, options):
    model = make_model()
    train(model, distributed(model, **options), part_of)
    check_equal(model, serial())


@ranks(2)
def test_groups_as_lists(rank_count):
    model = make_model()
    parameters = list(model.parameters())
    optimizer = distributed(model, groups=[parameters[:2], [parameters[4]]])
    train(model, optimizer, part_of)
    check_equal(model, serial())


@ranks(2)
def test_sum(rank_count):
    model = make_model()
    train(model, distributed(model, lambda p: torch.optim.SGD(p, 0.1 / rank_count), op=hvd.Sum), part_of)
    check_equal(model, serial(make=lambda p: torch.optim.SGD(p, 0.1)))


@ranks(2)
def test_compression(rank_count):
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = make_model()
        train(model, distributed(model, compression=compression), part_of)
        check_equal(model, serial(), tolerance=0.05)


@ranks(2, 3)
def test_clipping_in_the_plain_loop(rank_count):
    """C28: gradients are reduced when backward returns, once each."""
    norms = []

    def clip(model, optimizer):
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())

    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, part_of, 1, clip)
    before = core.statistics()["tensors"]
    train(model, optimizer, lambda step: part_of(step + 1), 1, clip)
    assert core.statistics()["tensors"] - before == len(list(model.parameters()))
    parallel, norms[:] = list(norms), []
    expected = serial(2, before_step=clip)
    assert parallel == pytest.approx(norms, rel=1e-9)
    check_equal(model, expected)


@ranks(2)
def test_clipping_with_synchronize(rank_count):
    def clip(model, optimizer):
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    model = make_model()
    optimizer = distributed(model)
    for step in range(3):
        optimizer.zero_grad()
        x, y = part_of(step)
        F.cross_entropy(model(x), y).backward()
        clip(model, optimizer)
        with optimizer.skip_synchronize():
            optimizer.step()

    def clip_serial(model, optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    check_equal(model, serial(3, before_step=clip_serial))
    optimizer.zero_grad()
    x, y = part_of(3)
    F.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


@ranks(2)
def test_channels_last_and_other_layouts(rank_count):
    model = make_model().to(memory_format=torch.channels_last)
    assert not model[2].weight.is_contiguous()
    train(model, distributed(model), lambda s: (part_of(s)[0].to(memory_format=torch.channels_last), part_of(s)[1]))
    check_equal(model, serial())
    parameter = torch.nn.Parameter(torch.ones(3, 4).t())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    assert torch.allclose(parameter, torch.full((4, 3), 1 - 2 * 1.5))
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    parameter.grad = torch.tensor(float(hvd.rank())).expand(3)
    optimizer.step()
    assert parameter.tolist() == [0.5] * 3


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


@ranks(2)
def test_gradients_that_were_not_reduced_are_not_applied(rank_count):
    model = make_model()
    optimizer = distributed(model, backward_passes_per_step=2)
    x, y = part_of(0)
    F.cross_entropy(model(x), y).backward()
    with optimizer.skip_synchronize(), pytest.raises(RuntimeError, match="not reduced"):
        optimizer.step()
    optimizer.zero_grad()


@ranks(2)
def test_what_the_wrapped_optimizer_stays(rank_count):
    """Class, name, state, schedulers made before and after, hooks, state_dict, copies and pickles."""
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), 0.01)
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    plain.step()
    exp_avg = plain.state[next(model.parameters())]["exp_avg"].clone()
    early = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert not type(optimizer).__module__.startswith("torch.")
    assert torch.equal(optimizer.state[next(model.parameters())]["exp_avg"], exp_avg)
    late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *a: calls.append(1))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, part_of, 1)
        early.step()
        late.step()
    assert calls == [1]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)
    check_same_on_ranks(model)

    saved = copy.deepcopy(optimizer.state_dict())  # torch itself would share the tensors
    other = make_model()
    restored = distributed(other, lambda p: torch.optim.Adam(p, 1.0))
    restored.load_state_dict(saved)
    other.load_state_dict(model.state_dict())
    train(model, optimizer, part_of, 2)
    train(other, restored, part_of, 2)
    check_equal(other, model)

    for duplicate in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        net, opt = duplicate((model, optimizer))
        assert isinstance(opt, torch.optim.Adam) and type(opt) is type(optimizer)
        train(net, opt, part_of, 2)
        check_same_on_ranks(net)
    train(model, optimizer, part_of, 2)
    check_equal(net, model)


@ranks(2)
def test_subclassing(rank_count):
    base = type(distributed(make_model()))

    class Counting(base):
        steps = 0

        def step(self, *args, **kwargs):
            self.steps += 1
            return super().step(*args, **kwargs)

    model = make_model()
    optimizer = distributed(model)
    optimizer.__class__ = Counting
    train(model, optimizer, part_of)
    assert optimizer.steps == 5
    check_equal(model, serial())
    again = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    assert type(again) is Counting
    train(model, again, part_of, 1)
    check_same_on_ranks(model)


@ranks(2)
def test_wrong_arguments(rank_count):
    model = make_model()
    parameters = list(model.parameters())
    cases = [
        {"named_parameters": parameters},
        {"named_parameters": [("same", p) for p in parameters]},
        {"named_parameters": list(model.named_parameters())[:-1]},
        {"groups": -1},
        {"groups": "two"},
        {"groups": parameters},
        {"groups": [[parameters[0]], [parameters[0]]]},
        {"groups": [["x"]]},
        {"backward_passes_per_step": 0},
        {"backward_passes_per_step": 1.5},
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"gradient_predivide_factor": 0.0},
        {"gradient_predivide_factor": float("nan")},
        {"compression": "fp16"},
        {"op": 12},
        {"process_set": [0]},
        {"process_set": hvd.ProcessSet([0])},
    ]
    for options in cases:
        with pytest.raises(ValueError):
            hvd.DistributedOptimizer(torch.optim.SGD(parameters, 0.1), **options)
            pytest.fail(str(options))
    with pytest.raises(ValueError, match="Module"):
        hvd.DistributedOptimizer(torch.nn.Module())
    with pytest.warns(DeprecationWarning):
        hvd.DistributedOptimizer(torch.optim.SGD(parameters, 0.1), num_groups=2)


@ranks(2)
def test_adasum_equals_its_formula(rank_count):
    """Orthogonal changes add up; equal ones are averaged."""
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0), op=hvd.Adasum)
    assert isinstance(optimizer, torch.optim.SGD)
    direction = torch.zeros(4, dtype=torch.float64)
    direction[hvd.rank()] = 1.0
    (parameter * direction).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-1.0, -1.0, 0.0, 0.0]
    optimizer.zero_grad()
    parameter[3].backward()
    optimizer.step()
    assert parameter.tolist() == [-1.0, -1.0, 0.0, -1.0]
    with pytest.raises(AssertionError), optimizer.skip_synchronize():
        pass


@ranks(3)
def test_adasum_refuses_what_it_cannot_do(rank_count):
    with pytest.raises(NotImplementedError):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0), op=hvd.Adasum)


@ranks(3)
def test_process_set(rank_count):
    """Ranks 0 and 2 train together, rank 1 alone."""
    pair = hvd.add_process_set([0, 2])
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0), process_set=pair)
    (parameter * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-2.0] * 2  # the mean of 1 and 3, and rank 1's own 2
    optimizer.zero_grad()
    (parameter * 10 * hvd.rank()).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-12.0] * 2
    assert hvd.remove_process_set(pair)


@ranks(2)
def test_parameter_check_finds_drift(rank_count, monkeypatch):
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "2")
    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, part_of, 4)
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] += 1e-12 * hvd.rank()
    with pytest.raises(hvd.HorovodInternalError, match=r"2\.weight"):
        train(model, optimizer, part_of, 2)
