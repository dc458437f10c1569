"""SyncBatchNorm on ranks equals torch's batch norm on the joined batch."""

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd

SHAPES = {"1d": (4, 3), "1d sequence": (4, 3, 5), "2d": (4, 3, 5, 2), "3d": (2, 3, 2, 2, 2)}


def joined(shape, count, dtype):
    generator = torch.Generator().manual_seed(9)
    return (torch.randn(count * shape[0], *shape[1:], generator=generator, dtype=torch.float64) * 3 + 100).to(dtype)


def plain_layer(shape, **options):
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    return kind[len(shape)](shape[1], **options)


@ranks(1, 2, 3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options", ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}), ids=str
)
def test_equals_the_joined_batch(rank_count, shape, options):
    dims = SHAPES[shape]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        layer = hvd.SyncBatchNorm(3, **options).to(dtype)
        plain = plain_layer(dims, **options).to(torch.float64)
        assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        for _ in range(2):
            whole = joined(dims, rank_count, dtype)
            own = whole[hvd.rank() * dims[0] :][: dims[0]].clone().requires_grad_()
            reference = whole.double().requires_grad_()
            weight = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
            output = layer(own)
            expected = plain(reference)
            part = slice(hvd.rank() * dims[0], (hvd.rank() + 1) * dims[0])
            torch.testing.assert_close(output.double(), expected[part], rtol=tolerance, atol=tolerance)
            layer.zero_grad(), plain.zero_grad()
            (output.double() * weight[part]).sum().backward()
            (expected * weight).sum().backward()
            torch.testing.assert_close(own.grad.double(), reference.grad[part], rtol=tolerance, atol=tolerance)
            for name, parameter in layer.named_parameters():
                summed = hvd.allreduce(parameter.grad.double(), op=hvd.Sum)
                target = dict(plain.named_parameters())[name].grad
                torch.testing.assert_close(summed, target, rtol=tolerance, atol=10 * tolerance)
        for name, value in layer.named_buffers():
            target = dict(plain.named_buffers())[name]
            torch.testing.assert_close(value.double(), target.double(), rtol=tolerance, atol=tolerance)


@ranks(2)
def test_uneven_batches_evaluation_and_errors(rank_count):
    layer, plain = hvd.SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    whole = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = whole[:4] if hvd.rank() == 0 else whole[4:]
    expected = plain(whole)
    torch.testing.assert_close(layer(own), expected[:4] if hvd.rank() == 0 else expected[4:])
    torch.testing.assert_close(layer.running_var, plain.running_var)
    layer.eval(), plain.eval()
    alone = torch.randn(hvd.rank() + 1, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(alone), plain(alone))
    with pytest.raises(ValueError):
        layer(torch.ones(3))
    first, second = hvd.SyncBatchNorm(3).double(), hvd.SyncBatchNorm(3).double()
    stacked = second(first(own))
    torch.testing.assert_close(hvd.allreduce(stacked.sum(0), op=hvd.Sum), torch.zeros(3, dtype=torch.float64))


@ranks(3)
def test_within_a_process_set(rank_count):
    pair = hvd.add_process_set([0, 2])
    layer = hvd.SyncBatchNorm(1, affine=False, process_set=pair).double()
    own = torch.tensor([[1.0 + hvd.rank()], [2.0 + hvd.rank()]], dtype=torch.float64)
    members = [0, 2] if hvd.rank() != 1 else [1]
    both = torch.cat([torch.tensor([[1.0 + r], [2.0 + r]], dtype=torch.float64) for r in members])
    expected = (own - both.mean()) / (both.var(unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(layer(own), expected)
    assert hvd.remove_process_set(pair)
