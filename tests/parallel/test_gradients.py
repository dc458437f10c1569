"""C25: gradients of collectives equal finite differences of the mean loss over ranks, up to each verb's known factor.

The factors are in sirtaki.torch.ops.autograd. With P ranks, autograd gives P times the gradient of the mean loss for
allreduce and alltoall, the gradient itself for allgather and broadcast, and P * P times for reducescatter.
"""

import threading
import time

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd

ROWS = 6  # divisible by 2 and 3
STEP = 1e-4


def weights(shape: tuple[int, ...]) -> torch.Tensor:
    """What this rank multiplies the output with, so that the ranks' losses differ."""
    generator = torch.Generator().manual_seed(77 + hvd.rank())
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (weights(tuple(output.shape)) * output.square()).sum()


def uneven(x: torch.Tensor) -> torch.Tensor:
    return x[: hvd.rank() + 2]


CALLS = {
    "allreduce average": (lambda x: hvd.allreduce(x, op=hvd.Average, name="g"), 1),
    "allreduce sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, name="g"), 1),
    "allreduce scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), 1),
    "allreduce compressed": (lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.none), 1),
    "grouped allreduce average": (lambda x: torch.cat(hvd.grouped_allreduce([x[:2], x[2:] * 2], name="g")), 1),
    "grouped allreduce sum": (lambda x: torch.cat(hvd.grouped_allreduce([x[:1], x[1:]], op=hvd.Sum)), 1),
    "alltoall": (lambda x: hvd.alltoall(x, name="g"), 1),
    "alltoall with splits": (lambda x: hvd.alltoall(x, [1] * hvd.size())[0], 1),
    "allgather": (lambda x: hvd.allgather(x, name="g"), 0),
    "allgather uneven": (lambda x: hvd.allgather(uneven(x)), 0),
    "grouped allgather": (lambda x: torch.cat(hvd.grouped_allgather([uneven(x), x * 3])), 0),
    "broadcast": (lambda x: hvd.broadcast(x, 1, name="g"), 0),
    "reducescatter average": (lambda x: hvd.reducescatter(x, op=hvd.Average, name="g"), 2),
    "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), 2),
    "reducescatter scaled": (lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0), 2),
    "grouped reducescatter": (lambda x: torch.cat(hvd.grouped_reducescatter([x, x * 2], op=hvd.Sum)), 2),
}


def mean_loss(call, x: torch.Tensor) -> float:
    with torch.no_grad():
        return hvd.allreduce(loss_of(call(x)), op=hvd.Average).item()


def finite_differences(call, x: torch.Tensor) -> torch.Tensor:
    """d(mean loss)/d(this rank's x); every rank takes part in the differences of every other."""
    result = torch.zeros_like(x)
    for rank in range(hvd.size()):
        for index in range(x.numel()):
            ends = []
            for sign in (1, -1):
                moved = x.clone()
                if rank == hvd.rank():
                    moved.view(-1)[index] += sign * STEP
                ends.append(mean_loss(call, moved))
            if rank == hvd.rank():
                result.view(-1)[index] = (ends[0] - ends[1]) / (2 * STEP)
    return result


@ranks(2, 3)
@pytest.mark.parametrize("kind", CALLS)
def test_against_finite_differences(rank_count, kind):
    call, power = CALLS[kind]
    x = torch.rand(ROWS, 2, generator=torch.Generator().manual_seed(hvd.rank()), dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    loss_of(call(leaf)).backward()
    expected = finite_differences(call, x) * float(rank_count) ** power
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-6, atol=1e-8)


COMPILED = (
    "allreduce average",
    "allreduce sum",
    "grouped allreduce sum",
    "alltoall",
    "allgather",
    "broadcast",
    "reducescatter average",
    "reducescatter sum",
)


@ranks(2)
@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_equals_eager(rank_count, kind):
    call, _ = CALLS[kind]
    x = torch.rand(ROWS, 2, generator=torch.Generator().manual_seed(hvd.rank()), dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    loss_of(call(leaf * 2)).backward()
    torch.compiler.reset()
    compiled = torch.compile(lambda y: call(y * 2) * 1.0, backend="aot_eager")
    other = x.clone().requires_grad_()
    output = compiled(other)
    loss_of(output).backward()
    torch.testing.assert_close(other.grad, leaf.grad)


@ranks(2)
def test_backward_in_another_order_on_each_rank(rank_count):
    """Gradients are named after their forward call, so that they find each other whichever starts first."""
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, requires_grad=True)
    a, b = hvd.allreduce(x * 2, op=hvd.Sum), hvd.allreduce(y * 5, op=hvd.Sum)
    threads = [threading.Thread(target=loss.backward) for loss in (a.sum(), 10 * b.sum())]
    for thread in threads if hvd.rank() == 0 else threads[::-1]:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert x.grad.tolist() == [4.0] * 3
    assert y.grad.tolist() == [100.0] * 3


@ranks(2)
def test_second_derivative(rank_count):
    x = torch.full((2,), 3.0, dtype=torch.float64, requires_grad=True)
    y = hvd.allreduce(x**3, op=hvd.Average, name="cubic").sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.tolist() == [27.0, 27.0]
    first.sum().backward()
    assert x.grad.tolist() == [18.0, 18.0]


@ranks(2)
def test_operations_without_gradient_say_so(rank_count):
    x = torch.ones(2, requires_grad=True)
    result = hvd.allreduce(x, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="Max"):
        result.sum().backward()
    assert not hvd.synchronize(hvd.allreduce_async(x)).requires_grad
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
