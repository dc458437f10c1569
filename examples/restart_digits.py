"""Trains on handwritten digits in a job that loses a rank, starts anew, and goes on from its newest checkpoint.

    sirtakirun -np 2 --restarts 1 python examples/restart_digits.py --kill-at 60

The last rank is killed at step 60 of the first life. A scheduler's signal (SIGTERM, SIGUSR1) makes all ranks save and
stop. The lines marked with a number are all that a program needs for this.
"""

import argparse
import os
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch_digits import accuracy, digits, make_model

import sirtaki.torch as hvd


def batch(data: torch.utils.data.TensorDataset, step: int, size: int) -> list[torch.Tensor]:
    """This rank's part of the examples of a step. They depend on the step alone, so no batch is lost or used twice."""
    per_epoch = len(data) // size
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    return [tensor[order[place * size : (place + 1) * size][hvd.rank() :: hvd.size()]] for tensor in data.tensors]


def begin(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The first step to do: that after the newest checkpoint."""
    state = hvd.latest(folder)  # 1: the same on all ranks; None in a job without a checkpoint
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", default="checkpoints", help="of the checkpoints")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--every", type=int, default=25, help="steps between two checkpoints")
    parser.add_argument("--batch-size", type=int, default=64, help="examples of one step on all ranks together")
    parser.add_argument("--kill-at", type=int, default=-1, help="step of the first life at which the last rank dies")
    arguments = parser.parse_args()

    hvd.init()
    life = int(os.environ.get("SIRTAKI_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    train_data, test_data = digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        hvd.checkpoint(arguments.folder, state)  # 2: written beside training

    first = begin(arguments.folder, model, optimizer)
    if hvd.rank() == 0:
        print(f"Life {life} begins at step {first} on {hvd.size()} rank(s)", flush=True)
    for step in range(first, arguments.steps):
        images, labels = batch(train_data, step, arguments.batch_size)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if step == arguments.kill_at and life == 0 and hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if hvd.preempted():  # 3: a scheduler wants the hosts back; all ranks stop after the same step
            save(step + 1)
            sys.exit(os.EX_TEMPFAIL)
        if (step + 1) % arguments.every == 0:
            save(step + 1)

    right = accuracy(model, test_data)
    if hvd.rank() == 0:
        print(f"Test accuracy: {right:.4f}", flush=True)
    assert right > 0.9, right


if __name__ == "__main__":
    main()
