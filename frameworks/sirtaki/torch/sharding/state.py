"""The state of pieces, and the whole state of torch's format: one tensor of the parameter's shape for each."""

from __future__ import annotations

from typing import Any

import torch

from sirtaki.torch.sharding.pieces import Piece, laid_out_like

MASTER = "master_weight"  # in the state of a parameter of 16 bits: its float32 weights


def is_divided(key: str, value: Any, like: torch.Tensor) -> bool:
    """Whether this entry of a state has an element for each element of the parameter, or of its piece."""
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == like.shape


def take_whole(optimizer: torch.optim.Optimizer, piece: Piece, whole: dict[str, Any]) -> None:
    """This rank's part of a parameter's whole state. Elements get the piece's dtype, as torch's own loading does."""
    taken = dict(whole)
    master = taken.pop(MASTER, None)
    if master is not None and piece.has_master:
        piece.tensor.copy_(_own_part(piece, master))
        piece.note_loaded()
    if not len(piece):
        return
    for key, value in taken.items():
        if is_divided(key, value, piece.parameter):
            taken[key] = _own_part(piece, value).to(piece.tensor.device, piece.tensor.dtype, copy=True)
        elif isinstance(value, torch.Tensor):
            taken[key] = value.clone()
    optimizer.state[piece.tensor] = taken


def _own_part(piece: Piece, whole: torch.Tensor) -> torch.Tensor:
    return laid_out_like(whole, piece.parameter)[piece.start : piece.stop]
