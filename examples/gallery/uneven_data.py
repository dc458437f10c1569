"""Uneven data: ranks with different numbers of batches. A rank that has no more calls join(), and no other rank waits.

    sirtakirun -np 2 python examples/gallery/uneven_data.py

Without join() the other ranks would wait for it for ever. While it waits, averages are over the ranks that still have
batches. The evaluation adds up what each rank knows, so that each example counts once, whatever rank has it.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import sirtaki.torch as hvd


def batches_of(rank: int, fewest: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`fewest` batches on rank 0, three more on each further rank; the last batch of all is a short one."""
    generator = torch.Generator().manual_seed(rank)
    found = []
    for number in range(fewest + 3 * rank):
        labels = torch.randint(3, (5 if number == 0 else 16,), generator=generator)
        found.append((torch.eye(3)[labels] + 0.4 * torch.randn(len(labels), 3, generator=generator), labels))
    return found[::-1]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list, epochs: int) -> None:
    for _ in range(epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        last = hvd.join()  # this rank has no more batches; returns when no rank has
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)  # from a rank that took every step


@torch.no_grad()
def accuracy(model: nn.Module, batches: list) -> tuple[float, int]:
    """(the share of right answers over all ranks, the number of their examples)."""
    right = sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in batches)
    count = sum(len(labels) for _, labels in batches)
    right, count = hvd.allreduce(torch.tensor([right, count]), name="accuracy", op=hvd.Sum).tolist()
    return right / count, count


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batches = batches_of(hvd.rank(), fewest=8)
    train(model, optimizer, batches, arguments.epochs)
    hvd.check_parameters(model.state_dict())
    share, count = accuracy(model, batches)
    numbers = hvd.allgather_object(len(batches))
    if hvd.rank() == 0:
        print(f"batches of the ranks: {numbers}; accuracy {share:.3f} over {count} examples")
    hvd.shutdown()


if __name__ == "__main__":
    main()
