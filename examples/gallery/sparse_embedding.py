"""Sparse gradients: of a large embedding only the rows that a batch used travel, not the table.

    sirtakirun -np 2 python examples/gallery/sparse_embedding.py

nn.Embedding(sparse=True) gives gradients with few rows. The optimizer gathers row numbers and rows of all ranks, and
merges duplicates. The same training with sparse_as_dense=True sends the whole table, and gives the same weights.
"""

import argparse

import torch
from torch import nn

import sirtaki.torch as hvd


class Recommender(nn.Module):
    """The score of a pair (user, item) is the product of two rows."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, 8, sparse=True)
        self.items = nn.Embedding(items, 8, sparse=True)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


def trained(steps: int, users: int, sparse_as_dense: bool) -> tuple[Recommender, int]:
    """(the model, the most rows that its reduced gradient had)."""
    torch.manual_seed(0)
    model = Recommender(users, users // 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), sparse_as_dense=sparse_as_dense
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    rows = 0
    for _ in range(steps):
        pairs = torch.stack([torch.randint(users // div, (64,), generator=generator) for div in (1, 10)], 1)
        optimizer.zero_grad()
        (model(pairs) - 1.0).square().mean().backward()
        rows = max(rows, model.users.weight.grad.coalesce().indices().shape[1])
        optimizer.step()
    return model, rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--users", type=int, default=20_000)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(1)
    sparse, rows = trained(arguments.steps, arguments.users, sparse_as_dense=False)
    dense, _ = trained(arguments.steps, arguments.users, sparse_as_dense=True)
    pairs = zip(sparse.parameters(), dense.parameters(), strict=True)
    difference = max((a - b).abs().max().item() for a, b in pairs)
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s): at most {rows} rows travel for a step, {arguments.users} as a table")
        print(f"largest difference of a weight: {difference:.1e}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
