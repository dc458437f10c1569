"""A pipeline of stages by torch.distributed.pipelining: activations and gradients go over Sirtaki's send and recv.

    sirtakirun -np 2 python examples/torch_pipeline.py

Each rank has one stage of the network. A batch is cut into pieces, so that the stages work at the same time.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import sirtaki.torch  # noqa: F401  registers the backend; not needed where Sirtaki is installed

WIDTH, PIECES = 16, 4


def make_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, x.flip(1).tanh()


def train_pipeline(module: nn.Module, steps: int) -> torch.Tensor:
    """The losses of all steps; on the last rank, zero elsewhere."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, PIECES, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    means = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        x, wanted = batch_of(step)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        schedule.step(*([x] if rank == 0 else []), **({"target": wanted, "losses": losses} if rank == size - 1 else {}))
        optimizer.step()
        if losses:
            means[step] = torch.stack(losses).mean().detach()
    return means


def train_alone(modules: list[nn.Module], steps: int) -> torch.Tensor:
    """The losses of the whole network in one process."""
    model = nn.Sequential(*modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    means = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        x, wanted = batch_of(step)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        means[step] = loss.detach()
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()

    dist.init_process_group("sirtaki")
    losses = train_pipeline(make_stages(dist.get_world_size())[dist.get_rank()], arguments.steps)
    dist.all_reduce(losses)  # from the last rank to all
    if dist.get_rank() == 0:
        alone = train_alone(make_stages(dist.get_world_size()), arguments.steps)
        print(f"Loss of {dist.get_world_size()} stages: {losses[0]:.6f} before, {losses[-1]:.6f} after", flush=True)
        print(f"Largest difference from one process: {(losses - alone).abs().max():.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
