"""Contiguous memory for the engine, in place of torch's tensors and lists of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

Tensors = list[torch.Tensor]
LastStep = Callable[[Any], None] | None  # what is done with a finished work of the core before its results are used


def as_list(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def dense_memory(tensors: Tensors) -> tuple[Tensors, LastStep]:
    """(contiguous memory for the results; what copies them into tensors that are not contiguous, None if all are)."""
    if len(tensors) == 1 and tensors[0].layout is torch.strided and tensors[0].is_contiguous():  # the usual case
        return tensors, None
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError(f"Sirtaki takes dense tensors here, got layout {tensor.layout}")
    dense = [tensor.contiguous() for tensor in tensors]

    def copy_back(_: Any) -> None:
        for tensor, copy in zip(tensors, dense, strict=True):
            if tensor is not copy:
                tensor.copy_(copy)

    return dense, copy_back if any(map(operator.is_not, dense, tensors)) else None


def apart(tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The tensor in contiguous memory that the output does not share."""
    if tensor.is_contiguous() and tensor.untyped_storage().data_ptr() != output.untyped_storage().data_ptr():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def check_sizes(verb: str, name: str, large: torch.Tensor, small: torch.Tensor, small_name: str, size: int) -> None:
    if large.numel() != small.numel() * size or large.dtype != small.dtype:
        raise ValueError(
            f"{verb}: the {name} must have {size} times the elements of the {small_name}, and its dtype; got "
            f"{large.numel()} of {large.dtype} and {small.numel()} of {small.dtype}"
        )


def copy_rows(places: Tensors, rows: torch.Tensor) -> None:
    for place, row in zip(places, rows.unbind(), strict=True):
        place.copy_(row.view(place.shape))


def no_rows(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor with rows of the right width."""
    return tensor.new_empty((0, tensor.shape[1:].numel()))
