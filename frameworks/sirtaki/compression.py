"""What a compressor is, whatever the framework; the built-in ones are in each adapter's compression.py."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Turns a tensor into a smaller one before a reduction, and the result back after it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """(the tensor to send, what decompress needs to know)."""
        raise NotImplementedError("a compressor defines compress() and decompress()")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in its first form."""
        raise NotImplementedError("a compressor defines compress() and decompress()")


def checked_compression(compression: Any) -> Any:
    """ValueError unless it can compress and decompress."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression must have compress and decompress, got {compression!r}")
    return compression


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor
