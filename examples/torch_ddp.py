"""torch's own DistributedDataParallel over Sirtaki: the program for gloo or NCCL, with another name of the backend.

sirtakirun -np 2 python examples/torch_ddp.py
torchrun --nproc-per-node 2 examples/torch_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import sirtaki.torch  # noqa: F401  registers the backend; not needed where Sirtaki is installed


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1437 images of 64 pixels to train with and 360 to test with, and their digits."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = (images / 16.0).float()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    parts = order[:1437], order[1437:]
    return TensorDataset(images[parts[0]], labels[parts[0]]), TensorDataset(images[parts[1]], labels[parts[1]])


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of right answers. Each rank tests its part; the counts are summed."""
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in data.tensors)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    counts = torch.stack([right, torch.tensor(len(labels))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--backend", default="sirtaki")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.manual_seed(1)
    train_data, test_data = digits()
    sampler = DistributedSampler(train_data, seed=1, drop_last=True)
    batches = DataLoader(train_data, 32 // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    share = accuracy(model.module, test_data)
    if dist.get_rank() == 0:
        print(f"Test accuracy on {dist.get_world_size()} rank(s): {share:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
