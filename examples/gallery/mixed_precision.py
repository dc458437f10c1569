"""Mixed precision: the forward pass in 16 bits by autocast, and gradients that travel in 16 bits by compression.

    sirtakirun -np 2 python examples/gallery/mixed_precision.py

On a CPU autocast uses bfloat16, which needs no scaling of the loss. On a GPU it uses float16 with torch's GradScaler:
gradients are averaged when backward returns, so the scaler sees the same infinities on every rank, and all skip alike.
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

import sirtaki.torch as hvd


def trained(mixed: bool, steps: int, device: torch.device) -> float:
    """The loss over all ranks after so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.bf16 if mixed else hvd.Compression.none,
    )
    wire = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=mixed and wire == torch.float16)
    generator = torch.Generator().manual_seed(hvd.rank())
    inputs = torch.randn(256, 16, generator=generator).to(device)
    targets = inputs[:, :4].argmax(1)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device.type, wire) if mixed else contextlib.nullcontext():
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    hvd.check_parameters(model.state_dict())
    return hvd.allreduce(loss.detach().float(), name="loss").item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(1)
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    exact, mixed = (trained(is_mixed, arguments.steps, device) for is_mixed in (False, True))
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s): loss {exact:.4f} in float32, {mixed:.4f} in mixed precision")
    hvd.shutdown()


if __name__ == "__main__":
    main()
