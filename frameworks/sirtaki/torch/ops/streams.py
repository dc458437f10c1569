"""Streams of torch's GPUs, as handles for the core; memory for results that the core's streams write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sirtaki.torch.ops.tensors import HOST, Descriptor, result_shape


def _no_gpu(device: int) -> int:
    raise ValueError(f"this torch ({torch.__version__}) was built without CUDA, so there is no gpu:{device}")


# The same as torch.cuda.current_stream(device).cuda_stream, but makes no Python object.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _no_gpu)


def stream_of(tensors: Sequence[Descriptor]) -> int | None:
    """The handle of the current stream of the tensors' GPU; None on the host."""
    device = tensors[0][4]
    return None if device == HOST else current_stream(device)


class Results:
    """Result tensors that are allocated when the core knows the size of dimension 0. likes: give all other dimensions.

    They are allocated on the stream that writes them. So torch reuses no memory that an earlier kernel still uses.
    """

    def __init__(self, likes: Sequence[torch.Tensor]) -> None:
        self._likes = likes
        self._made: list[torch.Tensor | None] = [None] * len(likes)

    def allocate(self, number: int, shape: tuple[int, ...], stream: int) -> int:
        """The core calls it on the engine's thread. Returns the address."""
        like = self._likes[number]
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device)):
            self._made[number] = torch.empty(result_shape(shape, like), dtype=like.dtype, device=like.device)
        return self._made[number].data_ptr()

    def take(self) -> tuple[torch.Tensor, ...]:
        """The tensors, for use on the current stream. That stream has waited for them."""
        for tensor in self._made:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tuple(self._made)
