"""Divides the examples of an epoch among the ranks, and those that are left among other ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch

from sirtaki import runtime


class ElasticSampler(torch.utils.data.Sampler[int]):
    """A sampler for a DataLoader. After a change of the ranks it divides the examples that were not processed.

    Call set_epoch() when an epoch begins, and record_batch() after each batch, with the same arguments on all ranks.
    Put it into the state: `TorchState(..., sampler=sampler)`. If the examples cannot be divided evenly, the first ones
    of the rest are used again at the end of the epoch, so that all ranks have equally many.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # examples of this epoch, on all ranks together
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: no example is processed, and they are shuffled anew."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that each rank has processed batch_size more examples. batch_idx: ignored; programs pass it."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on after the examples that were processed."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the examples that are left among the ranks that there are now."""
        self.num_replicas, self.rank = runtime.size(), runtime.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        missing = self.num_samples * self.num_replicas - len(self.remaining_indices)
        rest = self.remaining_indices * (1 + missing // max(1, len(self.remaining_indices)))
        self.indices = (self.remaining_indices + rest[:missing])[self.rank :: self.num_replicas]

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Of the examples in a batch of this rank."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
