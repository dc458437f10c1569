"""Many small things: few collectives (C71), flat memory (C73), one build for compiled models."""

import gc

import psutil
import torch
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.native import core


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@ranks(2)
def test_small_tensors_travel_together(rank_count):
    """2000 tensors of 4 KB a step."""
    tensors = [torch.full((1024,), float(i)) for i in range(2000)]
    for step in range(3):
        before = core.statistics()
        handles = [hvd.allreduce_async(t, op=hvd.Sum, name=f"small.{i}") for i, t in enumerate(tensors)]
        for i, handle in enumerate(handles):
            assert hvd.synchronize(handle)[0].item() == i * rank_count
        after = core.statistics()
        assert after["tensors"] - before["tensors"] == 2000
        if step:
            # How many is a matter of timing: what arrives while a batch runs travels together.
            assert after["batches"] - before["batches"] <= 1000
            assert after["cache_misses"] == before["cache_misses"]


@ranks(2)
def test_memory_with_fixed_and_with_new_names(rank_count):
    tensors = [torch.ones(16) for _ in range(50)]

    def run(kind, rounds, new):
        for number in range(rounds):
            names = [f"{kind}.{i}.{number if new else 0}" for i in range(len(tensors))]
            for handle in [hvd.allreduce_async_(t, name=n) for t, n in zip(tensors, names, strict=True)]:
                hvd.synchronize(handle)

    for new in (False, True):
        run(f"warm.{new}", 150, new)
        before = resident()
        run(f"flat.{new}", 250, new)
        assert resident() - before < 4 << 20, f"new names: {new}"


@ranks(2)
def test_memory_with_an_optimizer_wrapped_anew_each_step(rank_count):
    model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(6)])
    raw = torch.optim.SGD(model.parameters(), 0.01)

    def run(steps, fresh):
        for _ in range(steps):
            inner = torch.optim.SGD(model.parameters(), 0.01) if fresh else raw
            optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
            optimizer.zero_grad()
            model(torch.ones(2, 20)).square().mean().backward()
            optimizer.step()

    for fresh in (False, True):
        run(60, fresh)
        before = resident()
        run(150, fresh)
        assert resident() - before < 4 << 20
        assert len(next(model.parameters())._post_accumulate_grad_hooks) == (not fresh)


@ranks(2)
def test_compiled_model_trains_as_the_eager_one(rank_count):
    results = []
    for backend in (None, "eager", "aot_eager"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
        call = model if backend is None else torch.compile(model, backend=backend)
        generator = torch.Generator().manual_seed(hvd.rank())
        for _ in range(4):
            optimizer.zero_grad()
            call(torch.randn(5, 4, generator=generator, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
        check = hvd.allgather_object([p.tolist() for p in model.parameters()])
        assert check[0] == check[1]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two)


@ranks(2)
def test_compiled_training_step(rank_count):
    """The whole step under torch.compile, the optimizer's included."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).double()
    twin = torch.nn.Linear(4, 2).double()
    twin.load_state_dict(model.state_dict())

    def step(net, optimizer, x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    compiled = torch.compile(step, backend="eager")
    for net, run in ((model, compiled), (twin, step)):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
        generator = torch.Generator().manual_seed(hvd.rank())
        for _ in range(3):
            run(net, optimizer, torch.randn(5, 4, generator=generator, dtype=torch.float64))
    torch.testing.assert_close(model.weight, twin.weight)
    weights = hvd.allgather_object(model.weight.tolist())
    assert weights[0] == weights[1]
