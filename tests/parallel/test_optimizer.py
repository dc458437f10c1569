"""DistributedOptimizer against a serial run on the joined batch: options, clipping, layouts."""

import pytest
import torch
import torch.nn.functional as F
from ranks import ranks
from training import check_equal, distributed, make_model, part_of, serial, train

import sirtaki.torch as hvd
from sirtaki.native import core


@ranks(1, 2, 3, 4)
def test_equals_the_serial_run(rank_count):
    """C36 too: the same global batches on any number of ranks."""
    model = make_model()
    train(model, distributed(model), part_of)
    check_equal(model, serial())


@ranks(2)
@pytest.mark.parametrize(
    "options",
    (
        {"groups": 2},
        {"groups": 100},
        {"gradient_predivide_factor": 3.0},
        {"gradient_predivide_factor": 3.0, "groups": 2},
        {"sparse_as_dense": True},
        {"op": hvd.Average, "process_set": hvd.global_process_set},
    ),
    ids=str,
)
def test_options_do_not_change_the_result(rank_count, options):
    model = make_model()
    train(model, distributed(model, **options), part_of)
    check_equal(model, serial())


@ranks(2)
def test_groups_as_lists(rank_count):
    model = make_model()
    parameters = list(model.parameters())
    optimizer = distributed(model, groups=[parameters[:2], [parameters[4]]])
    train(model, optimizer, part_of)
    check_equal(model, serial())


@ranks(2)
def test_sum(rank_count):
    model = make_model()
    train(model, distributed(model, lambda p: torch.optim.SGD(p, 0.1 / rank_count), op=hvd.Sum), part_of)
    check_equal(model, serial(make=lambda p: torch.optim.SGD(p, 0.1)))


@ranks(2)
def test_compression(rank_count):
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = make_model()
        train(model, distributed(model, compression=compression), part_of)
        check_equal(model, serial(), tolerance=0.05)


@ranks(2, 3)
def test_clipping_in_the_plain_loop(rank_count):
    """C28: gradients are reduced when backward returns, once each."""
    norms = []

    def clip(model, optimizer):
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())

    model = make_model()
    optimizer = distributed(model)
    train(model, optimizer, part_of, 1, clip)
    before = core.statistics()["tensors"]
    train(model, optimizer, lambda step: part_of(step + 1), 1, clip)
    # Each gradient once, and with each unit which of them there are.
    units = len(optimizer._distributed.reducer.buckets)
    assert core.statistics()["tensors"] - before == len(list(model.parameters())) + units
    parallel, norms[:] = list(norms), []
    expected = serial(2, before_step=clip)
    assert parallel == pytest.approx(norms, rel=1e-9)
    check_equal(model, expected)


@ranks(2)
def test_clipping_with_synchronize(rank_count):
    def clip(model, optimizer):
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    model = make_model()
    optimizer = distributed(model)
    for step in range(3):
        optimizer.zero_grad()
        x, y = part_of(step)
        F.cross_entropy(model(x), y).backward()
        clip(model, optimizer)
        with optimizer.skip_synchronize():
            optimizer.step()

    def clip_serial(model, optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    check_equal(model, serial(3, before_step=clip_serial))
    optimizer.zero_grad()
    x, y = part_of(3)
    F.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


@ranks(2)
def test_channels_last_and_other_layouts(rank_count):
    model = make_model().to(memory_format=torch.channels_last)
    assert not model[2].weight.is_contiguous()
    train(model, distributed(model), lambda s: (part_of(s)[0].to(memory_format=torch.channels_last), part_of(s)[1]))
    check_equal(model, serial())
    parameter = torch.nn.Parameter(torch.ones(3, 4).t())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    assert torch.allclose(parameter, torch.full((4, 3), 1 - 2 * 1.5))
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    parameter.grad = torch.tensor(float(hvd.rank())).expand(3)
    optimizer.step()
    assert parameter.tolist() == [0.5] * 3
