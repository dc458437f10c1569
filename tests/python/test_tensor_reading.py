"""How the binding reads torch's tensors: by DLPack's exchange API, or by attributes where torch has no such API."""

import pytest
import torch

from sirtaki.native import core


class WithoutApi(torch.Tensor):
    """As in torch before 2.10."""

    __dlpack_c_exchange_api__ = None


TENSORS = {
    "contiguous": torch.ones(2, 3),
    "number": torch.tensor(1.0),
    "empty": torch.empty(0, 3),
    "transposed": torch.ones(2, 3).t(),
    "every other": torch.ones(6)[::2],
    "expanded": torch.ones(1, 3).expand(2, 3),
    "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last in space": torch.ones(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "equal sizes, channels last": torch.ones(6, 3, 3, 3).to(memory_format=torch.channels_last),
    "one channel": torch.ones(4, 1, 3, 3).to(memory_format=torch.channels_last),
    "complex": torch.ones(2, 3, dtype=torch.complex64),
    "conjugate": torch.ones(2, 3, dtype=torch.complex64).conj(),
    "negative": torch.tensor([1j]).conj().imag,
    "sparse": torch.eye(3).to_sparse(),
    "float8": torch.ones(2).to(torch.float8_e4m3fn),
    "meta": torch.ones(2, device="meta"),
    **{name: torch.ones(2, dtype=getattr(torch, name)) for name in core.DTYPES if hasattr(torch, name)},
}
SHAPES = {
    "contiguous": (2, 3),
    "number": (),
    "empty": (0, 3),
    "channels last": (2, 4, 5, 3),
    "channels last in space": (2, 4, 5, 6, 3),
    "one channel": (4, 1, 3, 3),
    "complex": (2, 3, 2),
    **{name: (2,) for name in core.DTYPES if hasattr(torch, name)},
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_sent_from_their_own_memory(name: str) -> None:
    tensor = TENSORS[name]
    described = core.describe_tensor(tensor)
    if name not in SHAPES:
        assert described is None
    else:
        dtype = core.DTYPES["float32" if tensor.is_complex() else str(tensor.dtype).removeprefix("torch.")]
        assert described == (tensor.data_ptr(), tensor.data_ptr(), dtype, SHAPES[name], -1)
    if tensor.layout is torch.strided and tensor.device.type == "cpu":
        assert core.describe_tensor(tensor.as_subclass(WithoutApi)) == described
    assert core.describe_tensor(None) is core.describe_tensor("text") is None
