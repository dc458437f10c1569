"""The wrapped optimizer as an object, wrong arguments, Adasum, process sets, the check for drift."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from ranks import ranks
from training import batch, check_equal, check_same_on_ranks, distributed, make_model, part_of, serial, train

import sirtaki.torch as hvd


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
    with pytest.raises(hvd.HorovodInternalError, match=r"after step 6 the parameter 2\.weight"):
        train(model, optimizer, part_of, 2)
    with pytest.raises(hvd.HorovodInternalError, match=r"the parameter 2\.weight"):
        hvd.check_parameters(list(model.named_parameters()))
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.check_parameters(model.state_dict())
    other = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), 0.1), op=hvd.Adasum)
    train(other, optimizer, part_of, 2)
    with torch.no_grad():
        other[2].weight[0, 0, 0, 0] += 1e-6 * hvd.rank()
    with pytest.raises(hvd.HorovodInternalError, match=r"after step 4 the parameter noname\.0\.2 "):
        train(other, optimizer, part_of, 2)
    with pytest.raises(hvd.HorovodInternalError, match=r"numbers of parameters: \[1, 2\]"):
        hvd.check_parameters([torch.zeros(2)] * (1 + hvd.rank()))
