"""Gradients that are cast into one tensor by our own kernels, compared with torch's casts."""

import pytest
import torch

from sirtaki.native import core
from sirtaki.torch.compression import Compression
from sirtaki.torch.gradients.packing import FlatWire
from sirtaki.torch.gradients.slots import Slot
from sirtaki.torch.ops.tensors import DTYPE_NUMBERS

GRADIENTS = (
    torch.randn(5, 3),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(1),
    torch.randn(0, 7),
    torch.tensor([float("inf"), -0.0, float("nan"), 1e-30]),
)


def slots_of(*gradients: torch.Tensor | None) -> tuple[Slot, ...]:
    slots = []
    for number, gradient in enumerate(gradients):
        values = torch.zeros(1) if gradient is None else torch.zeros_like(gradient)
        parameter = torch.nn.Parameter(values, requires_grad=False)
        parameter.grad = gradient
        slots.append(Slot(parameter, f"p{number}"))
    return tuple(slots)


def cast(slots: tuple[Slot, ...], wire: torch.dtype) -> core.CastGradients | None:
    def make(like: torch.Tensor, elements: int, checksum: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(elements, dtype=wire), torch.empty(0, checksum)

    return core.CastGradients.make(slots, DTYPE_NUMBERS[wire], make)


@pytest.mark.parametrize("compression", [Compression.fp16, Compression.bf16])
def test_the_same_tensors_as_by_torch(compression):
    gradients = [gradient.clone() for gradient in GRADIENTS]
    expected = FlatWire.of([gradient.clone() for gradient in GRADIENTS], compression)
    packed = cast(slots_of(*gradients), compression.wire)
    (flat, layout), (own_flat, own_layout) = expected.tensors, packed.tensors
    assert layout.shape == own_layout.shape
    torch.testing.assert_close(own_flat, flat, rtol=0, atol=0, equal_nan=True)
    own_flat *= 2
    before = [gradient.to(compression.wire).float() for gradient in GRADIENTS]
    packed.unpack(None)
    for gradient, old in zip(gradients, before, strict=True):
        torch.testing.assert_close(gradient, (old.to(compression.wire) * 2).float(), rtol=0, atol=0, equal_nan=True)


def test_another_layout_is_seen():
    contiguous = [gradient.contiguous() for gradient in GRADIENTS]
    shapes = {cast(slots_of(*gradients), torch.float16).tensors[1].shape for gradients in (GRADIENTS, contiguous)}
    assert len(shapes) == 2


@pytest.mark.parametrize(
    "gradients",
    [
        (torch.ones(2), None),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2, dtype=torch.float16),),
        (torch.ones(2, dtype=torch.int32),),
        (torch.ones(2, dtype=torch.complex64),),
        (torch.ones(4, 4)[:, ::2],),
        (torch.eye(2).to_sparse(),),
        (torch.tensor([1j]).conj().imag,),
    ],
    ids=["missing", "two dtypes", "wire dtype", "integers", "complex", "gaps", "sparse", "negated"],
)
def test_others_are_left_to_torch(gradients):
    assert cast(slots_of(*gradients), torch.float16) is None
