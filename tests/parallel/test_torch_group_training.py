"""What is built on torch.distributed trains over Sirtaki as over gloo."""

import torch
import torch.distributed as dist
from ranks import ranks
from torch.nn.parallel import DistributedDataParallel
from torch_groups import groups, of_rank, same

STEPS = 4


def model(width: int = 16) -> torch.nn.Module:
    torch.manual_seed(7)
    layers = [torch.nn.Linear(width, width, dtype=torch.float64) for _ in range(3)]
    return torch.nn.Sequential(torch.nn.BatchNorm1d(width, dtype=torch.float64), *layers)


def trained(wrap, group) -> list[torch.Tensor]:
    """The parameters after some steps on each rank's own data."""
    module = wrap(model(), group)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(of_rank(8, 16, seed=step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def check(wrap, gloo) -> None:
    ours, theirs = trained(wrap, None), trained(wrap, gloo)
    for mine, other in zip(ours, theirs, strict=True):
        same(mine, other)
    everywhere = [torch.empty_like(ours[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, ours[0])
    assert all(torch.equal(ours[0], other) for other in everywhere)


@ranks(2, 3)
def test_ddp(rank_count):
    def small_buckets(module, group):
        return DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.001)

    def with_static_graph(module, group):
        return DistributedDataParallel(module, process_group=group, static_graph=True, gradient_as_bucket_view=True)

    with groups() as gloo:
        for wrap in (small_buckets, with_static_graph):
            check(wrap, gloo)
