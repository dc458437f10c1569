"""Making ranks equal: parameters, optimizer state (C33), objects."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "Adam capturable lr": lambda p: torch.optim.Adam(p, torch.tensor(0.1), foreach=False, capturable=False),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "Muon": lambda p: torch.optim.Muon([{**group, "params": _matrices(group)} for group in p], 0.1),
}


def _matrices(group):
    return [parameter for parameter in group["params"] if parameter.dim() == 2]


def make(kind: str, scale: float):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    groups = [{"params": list(model[:2].parameters())}, {"params": list(model[2].parameters()), "lr": 0.01 * scale}]
    return model, OPTIMIZERS[kind](groups)


def step(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def flat(value, prefix=""):
    """All leaves of a state dict by path; tensors as lists with their dtype."""
    if isinstance(value, dict):
        return {k: v for key, entry in value.items() for k, v in flat(entry, f"{prefix}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, entry in enumerate(value) for k, v in flat(entry, f"{prefix}/{i}").items()}
    if isinstance(value, torch.Tensor):
        return {prefix: (str(value.dtype), value.tolist())}
    return {prefix: value}


@ranks(3)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrapped", (False, True), ids=("plain", "wrapped"))
def test_optimizer_state(rank_count, kind, wrapped):
    """Rank 0 has taken steps and has other hyper-parameters; afterwards all state_dicts are its own."""
    if kind == "Muon" and not hasattr(torch.optim, "Muon"):
        return
    model, optimizer = make(kind, 1.0 if hvd.rank() == 0 else 5.0)
    if hvd.rank() == 0:
        step(model, optimizer)
        step(model, optimizer)
        optimizer.param_groups[1]["weight_decay"] = 0.25
        for state in optimizer.state.values():
            state["extra"] = None
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    before = flat(optimizer.state_dict())
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    after = flat(optimizer.state_dict())
    everywhere = hvd.allgather_object((before, after))
    assert after == everywhere[0][0]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    hvd.broadcast_parameters(model.state_dict(), 0)
    if not wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer)
    step(model, optimizer)
    finals = hvd.allgather_object([p.tolist() for p in model.parameters()])
    assert finals[0] == finals[hvd.rank()]


@ranks(2)
def test_state_in_another_precision_than_its_parameter(rank_count):
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], 0.1)
    if hvd.rank() == 0:
        optimizer.state[parameter]["master"] = torch.full((2,), 1.0 + 2**-20)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[parameter]["master"].tolist() == [1.0 + 2**-20] * 2


@ranks(2)
def test_other_groups_than_the_root(rank_count):
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters[: hvd.rank() + 1], 0.1)
    if hvd.rank() == 0:
        hvd.broadcast_optimizer_state(optimizer, 0)
    else:
        with pytest.raises(ValueError, match="groups"):
            hvd.broadcast_optimizer_state(optimizer, 0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(parameters), 0)


@ranks(2, 3)
def test_parameters(rank_count):
    root = rank_count - 1
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    expected = hvd.broadcast_object({k: v.clone() for k, v in model.state_dict().items()}, root)
    for params in (model.state_dict(), list(model.named_parameters()), list(model.parameters())):
        torch.manual_seed(hvd.rank())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(hvd.rank() - root)
        hvd.broadcast_parameters(params, root)
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[name]), name
    hvd.broadcast_parameters({"a": None, "b": torch.ones(2)}, 0)
    hvd.broadcast_parameters([], 0)


@ranks(1, 2, 3)
def test_objects(rank_count):
    secret = {"rank": hvd.rank(), "text": "ü" * hvd.rank(), "tensor": torch.full((2,), hvd.rank())}
    got = hvd.allgather_object(secret)
    assert [entry["rank"] for entry in got] == list(range(rank_count))
    assert got[-1]["text"] == "ü" * (rank_count - 1)
    root = rank_count - 1
    received = hvd.broadcast_object(secret if hvd.rank() == root else None, root)
    assert received["tensor"].tolist() == [root, root]
    assert hvd.broadcast_object(lambda: 5, 0)() == 5
    assert hvd.broadcast_object(None, 0) is None
    big = hvd.broadcast_object(b"x" * 3_000_000 if hvd.rank() == 0 else b"", 0, name="big")
    assert len(big) == 3_000_000


@ranks(3)
def test_objects_within_a_set(rank_count):
    pair = hvd.add_process_set([1, 2])
    if hvd.rank() != 0:
        assert hvd.allgather_object(hvd.rank(), process_set=pair) == [1, 2]
        assert hvd.broadcast_object(hvd.rank(), 2, process_set=pair) == 2
    assert hvd.remove_process_set(pair)
