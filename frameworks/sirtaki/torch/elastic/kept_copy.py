"""A copy of nested dicts, lists and tuples of tensors, in memory that is kept from one save to the next."""

from __future__ import annotations

import copy
from typing import Any

import torch


class KeptCopy:
    """Tensors of a GPU are copied to pinned host memory, in the stream's order: the host does not wait."""

    def __init__(self) -> None:
        self._value: Any = None
        self._copied: torch.cuda.Event | None = None  # the last copies from a GPU

    def save(self, value: Any) -> None:
        """The tensors of `value` may change afterwards."""
        self._complete()
        on_gpu = False

        def keep(tensor: torch.Tensor, kept: Any) -> torch.Tensor:
            nonlocal on_gpu
            on_gpu = on_gpu or tensor.is_cuda
            return _copied(tensor, kept)

        with torch.no_grad():
            self._value = _mapped(value, self._value, keep)
        if on_gpu:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def value(self) -> Any:
        """A copy of what was saved; changes of it do not reach what was saved."""
        self._complete()
        return _mapped(self._value, None, lambda tensor, _: tensor.clone())

    def _complete(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None


def _copied(tensor: torch.Tensor, kept: Any) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.detach().cpu().clone()
    fits = isinstance(kept, torch.Tensor) and (kept.shape, kept.dtype) == (tensor.shape, tensor.dtype)
    if not fits or (tensor.is_cuda and not kept.is_pinned()):
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return kept.copy_(tensor.detach(), non_blocking=True)


def _mapped(value: Any, kept: Any, change: Any) -> Any:
    """A copy of `value` in which change(tensor, the entry of `kept` at its place) has replaced each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value, kept)
    if isinstance(value, dict):
        others = kept if isinstance(kept, dict) else {}
        return {key: _mapped(entry, others.get(key), change) for key, entry in value.items()}
    if type(value) in (list, tuple):
        before = list(kept) if isinstance(kept, (list, tuple)) and len(kept) == len(value) else [None] * len(value)
        return type(value)(_mapped(entry, old, change) for entry, old in zip(value, before, strict=True))
    return copy.deepcopy(value)
