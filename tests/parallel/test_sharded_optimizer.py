"""shard_optimizer_state: the same training as with the whole state on every rank.

Why the results are equal in all bits: reducescatter adds the ranks' gradients in the order in which allreduce adds
them, elementwise updates do not mix elements, and pieces begin at multiples of the vector length.
"""

import pytest
import torch
from ranks import ranks
from sharded_training import SmallNet, adamw, check_same_bits, data, distributed, sgd, sharded, train

import sirtaki.torch as hvd

STEPS = range(50)


@ranks(1, 2, 3)
@pytest.mark.parametrize(("make", "free"), ((adamw, True), (sgd, False)))
def test_equal_bits_after_50_steps(rank_count, make, free):
    """Two groups, branches that only some ranks use, a layer that is frozen and unfrozen, another learning rate."""
    check_equal_bits(make, free)


@pytest.mark.long
@pytest.mark.long
@ranks(4)
def test_equal_bits_after_50_steps_on_four_ranks(rank_count):
    check_equal_bits(adamw, False)
    check_equal_bits(sgd, True)


def check_equal_bits(make, free):

    def run(model, optimizer):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20)

        def before_step(model, optimizer, step):
            model.last.requires_grad_(step < 10 or step > 20)
            schedule.step()

        train(model, optimizer, STEPS, branches="ab", before_step=before_step)

    model, expected = SmallNet(), SmallNet()
    run(expected, distributed(expected, make))
    optimizer = sharded(model, make, free_gradients=free)
    run(model, optimizer)
    check_same_bits(model, expected)
    assert torch.equal(model.never, torch.ones(5))  # a parameter without gradients is not moved by weight decay
    whole = sum(p.numel() for p in model.parameters() if p is not model.never)
    held = sum(value.numel() for entry in optimizer.state.values() for key, value in entry.items() if value.dim())
    parts = 2 if make is adamw else 1
    assert held <= parts * (whole / hvd.size() + 16 * len(list(model.parameters())))


@ranks(2, 3)
def test_accumulation_clipping_and_closures(rank_count):
    def clip_all(model, optimizer, step):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def clip_pieces(model, optimizer, step):
        norms.append(optimizer.clip_grad_norm(0.1).item())

    norms = []
    model, expected = SmallNet(), SmallNet()
    train(expected, distributed(expected, backward_passes_per_step=2), range(6), passes=2, before_step=clip_all)
    train(model, sharded(model, backward_passes_per_step=2), range(6), passes=2, before_step=clip_pieces)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert len(norms) == 6 and len(set(hvd.allgather_object(norms)[0])) == 6
    assert all(other == norms for other in hvd.allgather_object(norms))

    def step_with_closure(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model(data(1)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    losses = [step_with_closure(m, o) for m, o in ((expected, distributed(expected)), (model, sharded(model)))]
    assert torch.allclose(*losses, atol=1e-5)


@ranks(2)
def test_channels_last_and_process_sets(rank_count):
    def conv():
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 7, 3), torch.nn.Flatten(), torch.nn.Linear(7 * 36, 2)).to(
            memory_format=torch.channels_last
        )

    alone = hvd.add_process_set([hvd.size() - 1])
    for process_set in (hvd.global_process_set, alone):
        model, expected = conv(), conv()
        optimizers = sharded(model, process_set=process_set), distributed(expected, process_set=process_set)
        for step in range(5):
            x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step + 10 * hvd.rank()))
            for net, optimizer in zip((model, expected), optimizers, strict=True):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        check_same_bits(model, expected)
    hvd.remove_process_set(alone)


@ranks(2)
def test_parameters_that_come_go_and_change_hands(rank_count):
    """A group that is added, a parameter that is replaced, memory that is replaced, a second optimizer."""

    def run(model, optimizer):
        train(model, optimizer, range(3))
        optimizer.add_param_group({"params": list(model.b.parameters()), "lr": 0.05})
        train(model, optimizer, range(3, 6))
        model.last.requires_grad_(False)
        model.last.weight.data = model.last.weight.data + 1  # other memory, of a parameter without gradient in a bucket
        train(model, optimizer, range(20, 22))
        model.last.requires_grad_(True)
        model.first.weight.data = model.first.weight.data.clone()
        old = model.last.bias
        model.last.bias = torch.nn.Parameter(old.detach() + 1)
        parameters = optimizer.param_groups[0]["params"]
        parameters[[id(p) for p in parameters].index(id(old))] = model.last.bias
        train(model, optimizer, range(6, 9))

    def without_b(model):
        return torch.optim.Adam([p for name, p in model.named_parameters() if not name.startswith("b.")], 1e-2)

    model, expected = SmallNet(), SmallNet()
    optimizer = sharded(model, without_b)
    run(model, optimizer)
    run(expected, distributed(expected, without_b))
    check_same_bits(model, expected)
    held = {id(tensor) for tensor in optimizer.state}
    assert held <= {id(piece.tensor) for piece in optimizer._distributed.sharding.pieces.all()}

    second = distributed(model)
    train(model, second, range(1))
    with pytest.raises(RuntimeError, match="another DistributedOptimizer, made later, has some of these parameters"):
        optimizer.step()
