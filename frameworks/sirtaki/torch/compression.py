"""How gradients are sent. Subclass Compressor to write your own."""

from __future__ import annotations

from typing import Any

import torch

from sirtaki.compression import Compressor, NoneCompressor


class CastCompressor(Compressor):
    """Sends floating tensors in another dtype; integers unchanged."""

    wire = torch.float32

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.dtype.is_floating_point or tensor.dtype == cls.wire:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(CastCompressor):
    """Sends floating tensors as float16: values above 65504 overflow, values below 6e-8 become 0."""

    wire = torch.float16


class BF16Compressor(CastCompressor):
    """Sends floating tensors as bfloat16: the range of float32 with 8 bits of mantissa."""

    wire = torch.bfloat16


class Compression:
    """The built-in compressors: Compression.none, Compression.fp16, Compression.bf16.

    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), compression=hvd.Compression.bf16)
    tensor([1., 2.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
