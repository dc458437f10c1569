"""What shard_optimizer_state can be combined with."""

from __future__ import annotations

import torch

from sirtaki.reduce_ops import Adasum
from sirtaki.torch.compression import CastCompressor, NoneCompressor
from sirtaki.torch.gradients.optimizer_options import Options, parameters_of
from sirtaki.torch.sharding.elementwise import check_elementwise
from sirtaki.torch.sharding.pieces import check_divisible


def check_options(optimizer: torch.optim.Optimizer, options: Options, kind: type) -> None:
    """ValueError, with the value, for what does not work with shard_optimizer_state. kind: the user's own class."""
    with_it = "cannot be combined with shard_optimizer_state=True"
    if options.op == Adasum:
        raise ValueError(f"op=Adasum {with_it}: it combines whole updates")
    if options.groups or options.group_count:
        raise ValueError(f"groups={options.groups or options.group_count} {with_it}: buckets are made by size")
    compression = options.compression
    casts = isinstance(compression, type) and issubclass(compression, (CastCompressor, NoneCompressor))
    if not casts:
        raise ValueError(f"compression={compression!r} {with_it}: only Compression.none, .fp16 and .bf16 can")
    check_elementwise(optimizer, kind)
    for number, parameter in enumerate(parameters_of(optimizer)):
        check_divisible(parameter, options.name_of(number))
