"""What is built on torch.distributed trains over Sirtaki as over gloo."""

import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import ranks
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch_groups import groups, of_rank, same

import sirtaki.torch as hvd

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


@ranks(2, 3)
def test_fsdp2(rank_count):
    """Also the norm of all gradients, a sharded checkpoint of torch, and what the optimizer keeps."""

    def sharded(module, group):
        mesh = DeviceMesh.from_group(group, "cpu") if group else init_device_mesh("cpu", (rank_count,))
        for layer in list(module)[1:]:
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def full(module):
        return [parameter.full_tensor().detach() for parameter in module.parameters()]

    with groups() as gloo, tempfile.TemporaryDirectory() as own:
        results = []
        for group in (None, gloo):
            module = sharded(model(), group)
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            for step in range(STEPS):
                module(of_rank(8, 16, seed=step)).square().mean().backward()
                norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            results.append([*full(module), norm.full_tensor()])
            if group is None:
                ours = module
        for mine, other in zip(*results, strict=True):
            same(mine, other)
        folder = [own]
        dist.broadcast_object_list(folder)
        checkpoint.save(ours.state_dict(), checkpoint_id=folder[0])
        loaded = sharded(model(), None)
        state = loaded.state_dict()
        checkpoint.load(state, checkpoint_id=folder[0])
        loaded.load_state_dict(state)
        assert all(torch.equal(mine, other) for mine, other in zip(results[0], full(loaded), strict=False))
        dist.barrier()


@ranks(2, 3)
def test_zero_redundancy_optimizer(rank_count):
    with groups():
        parameters = []
        for sharded in (False, True):
            module = DistributedDataParallel(model())
            options = {"lr": 0.01, "foreach": False}
            if sharded:
                optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, **options)
            else:
                optimizer = torch.optim.Adam(module.parameters(), **options)
            for step in range(STEPS):
                optimizer.zero_grad()
                module(of_rank(8, 16, seed=step)).square().mean().backward()
                optimizer.step()
            parameters.append([parameter.detach() for parameter in module.parameters()])
        optimizer.consolidate_state_dict(to=0)
        assert all(torch.equal(one, other) for one, other in zip(*parameters, strict=True))


@ranks(2, 3)
def test_distributed_tensors(rank_count):
    whole = torch.arange(48.0, dtype=torch.float64).view(6, 8)
    with groups(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mesh = init_device_mesh("cpu", (rank_count,))
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        columns = rows.redistribute(mesh, [Shard(1)])
        assert torch.equal(columns.full_tensor(), whole)
        assert torch.equal(columns.to_local(), whole.chunk(rank_count, 1)[hvd.rank()])
        product = columns @ rows.redistribute(mesh, [Replicate()]).t().redistribute(mesh, [Shard(0)])
        assert torch.equal(product.full_tensor(), whole @ whole.t())  # a partial sum until then


@ranks(2)
def test_functional_collectives_in_a_compiled_graph(rank_count):
    with groups() as gloo:

        def calls(x, group):
            total = functional.all_reduce(x, "sum", group)
            everything = functional.all_gather_tensor(total, 0, group)
            part = functional.reduce_scatter_tensor(everything, "sum", 0, group)
            sent = functional.all_to_all_single(x, None, None, group)
            return part + sent, functional.broadcast(x, 1, group) * 2

        for x in (of_rank(4, 3), of_rank(6, 3, seed=1)):
            expected = calls(x, gloo)
            for form in (calls, torch.compile(calls, backend="aot_eager")):
                for mine, other in zip(form(x, dist.group.WORLD), expected, strict=True):
                    same(mine + 0, other + 0)


@ranks(2)
def test_both_interfaces_side_by_side(rank_count):
    """hvd.DistributedOptimizer trains one model and FSDP another, in turns, on one engine."""
    with groups():
        mine, sharded = model(), fully_shard(model())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), 0.05), mine.named_parameters())
        other = torch.optim.SGD(sharded.parameters(), 0.05)
        for step in range(STEPS):
            for module, update in ((mine, optimizer), (sharded, other)):
                update.zero_grad()
                module(of_rank(8, 16, seed=step)).square().mean().backward()
                update.step()
        for one, parts in zip(mine.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(one, parts.full_tensor(), rtol=1e-12, atol=1e-12)


@ranks(2)
def test_a_hook_that_makes_calls_when_a_bucket_is_ready(rank_count):
    """As PowerSGD's hook: a function that waited for a future makes a call, and waits for its future."""
    with groups():

        def hook(_, bucket):
            def again(future):
                mean = future.value()[0].div_(rank_count)
                work = dist.all_reduce(torch.ones(2), async_op=True)
                ones = work.get_future().wait()[0]
                return mean.mul_(ones[0] / rank_count)

            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(again)

        torch.manual_seed(2)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double()
        network = DistributedDataParallel(module, bucket_cap_mb=1e-4)
        network.register_comm_hook(None, hook)
        x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
        for _ in range(4):
            module.zero_grad()
            network(x[hvd.rank() :][:1]).sum().backward()
        expected = torch.autograd.grad(module(x).sum() / 2, list(module.parameters()))
        for parameter, right in zip(module.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, right)


@ranks(2)
def test_a_function_that_waits_for_a_future_runs_on_any_thread(rank_count):
    """Rank 0 gives the functions to complete futures, so that they run at once; rank 1 before any is complete."""
    with groups():
        found = []

        def again(future):
            work = dist.all_reduce(torch.full((2,), 1.0 + hvd.rank()), async_op=True)
            found.append(work.get_future().wait()[0].tolist())

        for _ in range(3):
            if hvd.rank() == 0:
                dist.recv(torch.empty(1), src=1)  # rank 1 has given its functions
            work = dist.all_reduce(torch.ones(3), async_op=True)
            future = work.get_future()
            if hvd.rank() == 0:
                future.wait()
            last = future.then(again).then(again)
            if hvd.rank() == 1:
                dist.send(torch.ones(1), dst=0)
            last.wait()
            assert dist.get_rank() == hvd.rank() and work.is_completed()
        assert found == [[3.0, 3.0]] * 6


def test_the_error_of_a_last_step_is_raised_each_time():
    from sirtaki.torch.process_group.work import Work

    class Done:
        def wait(self, stream):
            pass

        def done(self):
            return True

    def step(_):
        raise ValueError("rows")

    work = Work(Done(), -1, [], step, None, lambda: None)
    assert work.is_completed() and not work.is_success()
    for _ in range(2):
        with pytest.raises(ValueError, match="rows"):
            work.wait()
