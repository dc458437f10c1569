"""Fingerprints of tensors, by which ranks find out whether they have the same ones."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from sirtaki.elastic import fingerprints


def of_tensor(tensor: torch.Tensor) -> bytes:
    """A GPU's tensor is summed there."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return fingerprints.never_equal()
    form = repr((tuple(tensor.shape), tensor.dtype)).encode()
    data = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if data.device.type == "cpu":
        return form + fingerprints.of_bytes(data.numpy())
    count = data.numel() // fingerprints.BLOCK * fingerprints.BLOCK
    rows = data[:count].view(torch.int64).reshape(-1, fingerprints.COLUMNS)
    return form + fingerprints.of_sums(*(part.cpu().numpy() for part in (rows.sum(0), rows.sum(1), data[count:])))


def of_state(value: Any) -> bytes:
    """Of nested dicts, lists and tuples of tensors and objects that can be pickled."""
    try:
        return pickle.dumps(_described(value))
    except Exception:  # what pickle raises depends on the object
        return fingerprints.never_equal()


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        return [(key, _described(entry)) for key, entry in value.items()]
    return [_described(entry) for entry in value] if isinstance(value, (list, tuple)) else value
