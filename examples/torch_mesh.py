"""A mesh of two dimensions over Sirtaki: tensor parallel within, data parallel between.

    sirtakirun -np 4 python examples/torch_mesh.py

Two ranks share each copy of the network: each has half of the hidden units. The copies see different data, and FSDP2
averages their gradients. Every group of the mesh is made by its own ranks.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sirtaki.torch  # noqa: F401  registers the backend; not needed where Sirtaki is installed


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.second = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).tanh()


def make_model(mesh: DeviceMesh | None) -> nn.Module:
    """The same values on a mesh and, without one, in one process."""
    torch.manual_seed(1)
    model = Network().double()
    if mesh is None:
        return model
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    return fully_shard(parallelize_module(model, mesh["within"], plan), mesh=mesh["between"])


def batch_of(step: int, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What one copy of the network sees in a step: the sine of the sum of eight numbers."""
    generator = torch.Generator().manual_seed(1000 * step + copy)
    x = torch.randn(32, 8, generator=generator, dtype=torch.float64) / 2
    return x, x.sum(1, keepdim=True).sin()


def train(model: nn.Module, steps: int, copies: range) -> float:
    """The loss of the last step, a mean over these copies."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    for step in range(steps):
        optimizer.zero_grad()
        parts = [batch_of(step, copy) for copy in copies]
        x, wanted = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    dist.init_process_group("sirtaki")
    if dist.get_world_size() % 2:
        parser.error(f"needs an even number of ranks, got {dist.get_world_size()}")
    copies = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (copies, 2), mesh_dim_names=("between", "within"))
    own = mesh["between"].get_local_rank()
    loss = torch.tensor(train(make_model(mesh), arguments.steps, range(own, own + 1)), dtype=torch.float64)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        alone = train(make_model(None), arguments.steps, range(copies))
        print(f"Loss on {copies} x 2 ranks: {loss.item():.9f}, in one process: {alone:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
