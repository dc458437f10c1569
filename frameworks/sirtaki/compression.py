"""The interface of a compressor, for all frameworks; each adapter's compression.py has the built-in ones."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Makes a tensor smaller before a reduction, and restores the result after it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """(the tensor to send, the context that decompress() needs)."""
        raise NotImplementedError("a compressor defines compress() and decompress()")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in its original dtype and shape."""
        raise NotImplementedError("a compressor defines compress() and decompress()")


def checked_compression(compression: Any) -> Any:
    """Returns the compressor. ValueError unless it has compress() and decompress()."""
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
