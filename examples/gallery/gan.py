"""A GAN: two optimizers in one program, each with its own gradients, and no mixing of the two.

    sirtakirun -np 2 python examples/gallery/gan.py

The generator learns to draw from a normal distribution with mean 4 and deviation 0.5. Its backward pass also gives the
discriminator gradients, which nobody applies: zero_grad() before the next backward pass drops them on every rank alike.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import sirtaki.torch as hvd


def network(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
    )


def distributed(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.9))
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())  # other samples on each rank; the weights come from rank 0
    generator, discriminator = network(4), network(1)
    generator_optimizer, discriminator_optimizer = distributed(generator, 1e-3), distributed(discriminator, 1e-3)
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(arguments.steps):
        drawn = generator(torch.randn(64, 4))
        true = 4 + 0.5 * torch.randn(64, 1)
        discriminator_optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(discriminator(true), real)
        (loss + F.binary_cross_entropy_with_logits(discriminator(drawn.detach()), fake)).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(drawn), real).backward()
        generator_optimizer.step()
    hvd.check_parameters(list(generator.parameters()) + list(discriminator.parameters()))
    with torch.no_grad():
        drawn = hvd.allgather(generator(torch.randn(512, 4)), name="drawn")
    if hvd.rank() == 0:
        print(f"{len(drawn)} samples of {hvd.size()} rank(s): mean {drawn.mean():.2f}, deviation {drawn.std():.2f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
