"""A small model whose parameters do not divide evenly, and trainings of it."""

import torch

import sirtaki.torch as hvd


class SmallNet(torch.nn.Module):
    """Two branches, so that ranks may use different parameters; one parameter is never used."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(37, 65)
        self.a, self.b = torch.nn.Linear(65, 11), torch.nn.Linear(65, 11)
        self.last = torch.nn.Linear(11, 3)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.never = torch.nn.Parameter(torch.ones(5))
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.to(dtype)

    def forward(self, x: torch.Tensor, branch: str = "") -> torch.Tensor:
        x = self.first(x).relu()
        x = self.a(x) + self.b(x) if not branch else getattr(self, branch)(x)
        return self.last(x.relu()) * self.scale + self.empty.sum()


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Two groups with different weight decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], 1e-2)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3)


def data(step: int, rank: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of this rank, or of the given one."""
    rank = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(6, 37, generator=generator).to(dtype)


def distributed(model: torch.nn.Module, make=adamw, **options) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(make(model), model.named_parameters(), **options)


def sharded(model: torch.nn.Module, make=adamw, **options) -> torch.optim.Optimizer:
    return distributed(model, make, shard_optimizer_state=True, **options)


def train(model, optimizer, steps, passes: int = 1, branches: str = "", before_step=None) -> None:
    """branches: rank r uses branches[r] in even steps."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        optimizer.zero_grad()
        for number in range(passes):
            branch = branches[hvd.rank() % len(branches)] if branches and step % 2 == 0 else ""
            model(data(step + 500 * number, dtype=dtype), branch).square().mean().backward()
        if before_step is not None:
            before_step(model, optimizer, step)
        optimizer.step()


def check_same_bits(model: torch.nn.Module, expected: torch.nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), f"{name}: {(one - other).abs().max().item()}"
