"""What only one rank does to its gradients or parameters is refused on all ranks at once, with its name: C119."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.torch.gradients import buckets


def sgd(parameters, **options) -> torch.optim.Optimizer:
    names = [(name, parameters[name]) for name in sorted(parameters)]
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters.values()), 0.5), names, **options)


def ones(names: str) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.ones(1, dtype=torch.float64)) for name in names}


def train(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter], steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        sum(p * (hvd.rank() + 1.0) for p in parameters.values()).sum().backward()
        optimizer.step()


def is_odd() -> bool:
    return hvd.rank() == hvd.size() - 1


def refused_everywhere(program, *words: str) -> None:
    """The program fails on every rank with an error that has all these words."""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        program()
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert all(hvd.allgather_object(True))


def goes_on(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]) -> None:
    """After a refusal the same optimizer trains as one that is new."""
    before = [p.item() for p in parameters.values()]
    train(optimizer, parameters, 2)
    mean = (hvd.size() + 1) / 2
    assert [p.item() for p in parameters.values()] == [value - mean for value in before]


@pytest.fixture(autouse=True)
def several_units(monkeypatch):
    monkeypatch.setitem(buckets.BUCKET_BYTES, "cpu", 16)


@ranks(2, 3)
@pytest.mark.parametrize("steps", (1, 20), ids=("voting", "by plan"))
@pytest.mark.parametrize("explicit", (False, True))
def test_a_gradient_set_by_hand_on_one_rank(rank_count, steps, explicit):
    parameters = ones("abcdef")
    optimizer = sgd(parameters)
    train(optimizer, {name: parameters[name] for name in "abcde"}, steps)

    def program():
        optimizer.zero_grad()
        sum(parameters[name] for name in "abcde").sum().backward()
        if is_odd():
            parameters["f"].grad = torch.ones(1, dtype=torch.float64)
        if explicit:
            optimizer.synchronize()
        optimizer.step()
        train(optimizer, parameters)

    refused_everywhere(program, "f.grad was not there in backward", "on all ranks")
    goes_on(optimizer, parameters)


@ranks(2, 3)
def test_a_gradient_replaced_on_one_rank(rank_count):
    parameters = ones("abcde")
    optimizer = sgd(parameters)
    train(optimizer, parameters, 12)

    def program():
        optimizer.zero_grad()
        sum(parameters.values()).sum().backward()
        if is_odd():
            parameters["b"].grad = parameters["b"].grad * 2
        optimizer.step()
        train(optimizer, parameters)

    refused_everywhere(program, "b.grad was replaced after it had been reduced")
    goes_on(optimizer, parameters)


@ranks(2, 3)
@pytest.mark.parametrize("unused", (False, True))
def test_a_group_added_on_one_rank(rank_count, unused):
    """unused: there is a parameter that no rank ever uses, so that all ranks vote in every step."""
    parameters = ones("abc")
    used = {name: parameters[name] for name in ("ab" if unused else "abc")}
    optimizer = sgd(parameters)
    train(optimizer, used, 5)
    new = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    if is_odd():
        optimizer.add_param_group({"params": [new]})
    words = ("a.added.3",) if unused else ("a.added.3 was added", "on all ranks")
    refused_everywhere(lambda: train(optimizer, {**used, "new": new}, 3), *words)


@ranks(2, 3)
@pytest.mark.parametrize("what", ("removed", "frozen", "one removed"))
def test_parameters_that_one_rank_no_longer_trains(rank_count, what):
    """A whole unit of them, or one of several parameters of a unit."""
    parameters = ones("abcd")
    optimizer = sgd(parameters)
    train(optimizer, parameters, 5)
    gone = "cd" if what != "one removed" else "d"
    for name in gone if is_odd() else "":
        if what == "frozen":
            parameters[name].requires_grad_(False)
        else:
            (group,) = optimizer.param_groups
            group["params"] = [p for p in group["params"] if p is not parameters[name]]
    used = {name: parameters[name] for name in parameters if not is_odd() or name not in gone}
    refused_everywhere(lambda: train(optimizer, used, 3), "on all ranks")


@ranks(2, 3)
def test_frozen_as_a_whole_and_thawed(rank_count):
    """On all ranks alike, again and again: nothing is sent for what sleeps, and the names come back."""
    from sirtaki.native import core

    parameters = ones("abcd")
    optimizer = sgd(parameters)
    mean = (rank_count + 1) / 2
    expected = dict.fromkeys("abcd", 1.0)
    for turn in range(7):
        frozen = "cd" if turn % 2 else ""
        for name in "cd":
            parameters[name].requires_grad_(not frozen)
        train(optimizer, parameters, 2)
        expected = {name: value - (0.0 if name in frozen else mean) for name, value in expected.items()}
        assert {name: p.item() for name, p in parameters.items()} == expected
        before = core.statistics()["bytes"] if frozen else 0
        train(optimizer, parameters)
        expected = {name: value - (0.0 if name in frozen else mean / 2) for name, value in expected.items()}
        if frozen:
            assert core.statistics()["bytes"] - before < 8 * 8
    names = [unit.name for unit in optimizer._distributed.reducer.buckets]
    assert len(names) == 2 and not any(name.endswith(".2") for name in names), names
