"""Large batches: with N times the batch, N times the learning rate needs a warm-up, or training falls apart.

    sirtakirun -np 2 python examples/gallery/large_batch.py

Goyal et al. (2017) scale the rate with the batch and raise it slowly during the first epochs. The same network is
trained on scikit-learn's digits with a small batch, and from five starts with a large one, without and with warm-up. At
this rate most of the starts fail without it. The rate, the depth and the bad start were chosen so that this shows; with
most other choices warm-up changes little. So the program explains the method, and proves nothing about it.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import sirtaki.torch as hvd


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images, (1797, 64) float32 in [0, 1], and their digits."""
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 16, torch.from_numpy(labels)


def network(seed: int) -> nn.Sequential:
    """With weights three times torch's usual ones, as if the start were a bad one."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model


def trained(batch: int, rate: float, warmup: int, epochs: int, seed: int = 0) -> float:
    """The mean loss of the last epoch. batch: examples of all ranks together. warmup: epochs until the full rate."""
    images, labels = digits()
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    steps = len(images) // batch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (warmup * steps)) if warmup else 1.0
    )
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(1)
        for step in range(steps):
            mine = order[step * batch : (step + 1) * batch][hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
    return hvd.allreduce(total / steps, name="loss").item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(1)
    epochs = arguments.epochs
    ways = {
        "batch 16, rate 0.04": [trained(16, 0.04, 0, epochs)],
        "batch 256, rate 0.64": [trained(256, 0.64, 0, epochs, seed) for seed in range(5)],
        "batch 256, rate 0.64, warm-up": [trained(256, 0.64, epochs // 2, epochs, seed) for seed in range(5)],
    }
    if hvd.rank() == 0:
        for name, losses in ways.items():
            each = " ".join(f"{loss:.2f}" for loss in losses)
            print(f"{name:32}mean loss {sum(losses) / len(losses):.3f} of {each}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
