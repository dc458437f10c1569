"""Trains a small convolutional network on scikit-learn's handwritten digits, on any number of processes.

    sirtakirun -np 2 python examples/torch_digits.py

The batch size is that of all ranks together, so the same training runs on 1, 2 or 4 of them. The lines marked with a
number are all that makes a program for one process a program for many.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import sirtaki.torch as hvd


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1437 images to train with and 360 to test with, each (1, 8, 8) in [0, 1], and their digits."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images.reshape(-1, 1, 8, 8) / 16.0, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    dtype = torch.get_default_dtype()
    return TensorDataset(train_x.to(dtype), train_y), TensorDataset(test_x.to(dtype), test_y)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def mean_over_ranks(total: float, count: int, name: str) -> float:
    """The mean of a metric whose sum over `count` examples this rank knows."""
    total, count = hvd.allreduce(torch.tensor([total, count], dtype=torch.float64), name=name, op=hvd.Sum).tolist()
    return total / count


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader) -> float:
    """One pass over this rank's part; returns the mean loss of all ranks."""
    model.train()
    total, count = 0.0, 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * len(labels), count + len(labels)
    return mean_over_ranks(total, count, "loss")  # 6: metrics are averaged


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of right answers; each rank looks at every size-th example."""
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()] for tensor in data.tensors)
    right = (model(images).argmax(1) == labels).sum().item()
    return mean_over_ranks(right, len(labels), "accuracy")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="examples of one step on all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--float64", action="store_true", help="then any number of ranks gives the same losses")
    arguments = parser.parse_args(argv)
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    if arguments.float64:
        torch.set_default_dtype(torch.float64)

    hvd.init()  # 1: meet the other ranks
    if arguments.batch_size % hvd.size():
        parser.error(f"--batch-size {arguments.batch_size} cannot be divided among {hvd.size()} ranks")
    torch.manual_seed(hvd.rank())
    train_data, test_data = digits()
    sampler = DistributedSampler(train_data, hvd.size(), hvd.rank(), seed=1, drop_last=True)  # 2: each rank its part
    batches = DataLoader(train_data, arguments.batch_size // hvd.size(), sampler=sampler, drop_last=True)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 3: all begin from rank 0's weights
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # 4: average gradients

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        loss, right = train_epoch(model, optimizer, batches), accuracy(model, test_data)
        if hvd.rank() == 0:  # 5: one rank speaks
            print(f"Epoch {epoch + 1}: loss {loss:.6f}, test accuracy {right:.4f}", flush=True)
    if hvd.rank() == 0:
        print(f"Test accuracy on {hvd.size()} rank(s): {right:.4f}", flush=True)


if __name__ == "__main__":
    main()
