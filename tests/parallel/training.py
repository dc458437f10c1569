"""A small convolutional net, its data, and the serial run that a distributed one must equal."""

import torch
import torch.nn.functional as F

import sirtaki.torch as hvd

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
