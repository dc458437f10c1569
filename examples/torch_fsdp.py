"""FSDP2 over Sirtaki: a small transformer whose parameters are sharded, with a checkpoint for any number of ranks.

sirtakirun -np 4 python examples/torch_fsdp.py --save checkpoint
sirtakirun -np 2 python examples/torch_fsdp.py --load checkpoint
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sirtaki.torch  # noqa: F401  registers the backend; not needed where Sirtaki is installed

WIDTH, WORDS, LENGTH = 32, 16, 12


class Transformer(nn.Module):
    """Reads sequences of words; scores each word at each place as the next one: (sequences * places, WORDS)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        x = self.words(x) + self.places(torch.arange(length))
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return self.out(x.flatten(0, 1))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    """On sequences that count upward in steps of 1, 2 or 3."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(WORDS, (32, 1), generator=generator)
    stride = torch.randint(1, 4, (32, 1), generator=generator)
    sequence = (first + stride * torch.arange(LENGTH + 1)) % WORDS
    return F.cross_entropy(model(sequence[:, :-1]), sequence[:, 1:].flatten())


def test_loss(model: nn.Module) -> float:
    """On the same sequences for any number of ranks."""
    with torch.no_grad():
        return loss_of(model, seed=10**6).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", metavar="FOLDER")
    parser.add_argument("--load", metavar="FOLDER")
    arguments = parser.parse_args()

    dist.init_process_group("sirtaki")
    torch.manual_seed(1)
    model = Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # FSDP would take GPUs where there are some
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    if arguments.load:
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(parts, checkpoint_id=arguments.load)
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    before = test_loss(model)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss_of(model, seed=1000 * step + dist.get_rank()).backward()  # each rank has its own data
        optimizer.step()
    after = test_loss(model)
    if arguments.save:
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(parts, checkpoint_id=arguments.save)
    if dist.get_rank() == 0:
        print(f"Loss on {dist.get_world_size()} rank(s): {before:.4f} before, {after:.4f} after", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
