"""Local SGD: each rank takes k steps alone, then the ranks average their parameters. It sends k times fewer bytes.

    sirtakirun -np 2 python examples/gallery/local_sgd.py

Between two averages the ranks have different parameters, on purpose. Here no DistributedOptimizer is needed: a grouped
allreduce of the parameters is the whole exchange. With k = 1 and plain SGD the training is that of averaged gradients.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import sirtaki.torch as hvd


def part_of_this_rank(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 8) float32 and (count, 1): a noisy function, other examples on each rank."""
    generator = torch.Generator().manual_seed(hvd.rank())
    inputs = torch.randn(count, 8, generator=generator)
    return inputs, inputs[:, :1] * inputs[:, 1:2] + inputs[:, 2:3]


def average_parameters(model: nn.Module) -> None:
    with torch.no_grad():
        hvd.grouped_allreduce_([parameter.data for parameter in model.parameters()], name="parameters")


def trained(every: int, steps: int) -> float:
    """The loss over all ranks after so many steps, with an average after each `every` of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = part_of_this_rank(512)
    for step in range(1, steps + 1):
        rows = slice(32 * step % 512, 32 * step % 512 + 32)
        optimizer.zero_grad()
        F.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        if step % every == 0:
            average_parameters(model)
    average_parameters(model)
    hvd.check_parameters(model.state_dict())  # an error on every rank if they were not equal now
    with torch.no_grad():
        return hvd.allreduce(F.mse_loss(model(inputs), targets), name="loss").item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=640)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(1)
    for every in (1, 4, 16):
        loss = trained(every, arguments.steps)
        if hvd.rank() == 0:
            print(f"average after {every:2} step(s): loss {loss:.4f}, {arguments.steps // every} exchanges")
    hvd.shutdown()


if __name__ == "__main__":
    main()
