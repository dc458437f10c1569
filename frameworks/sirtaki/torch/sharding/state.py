"""The state of pieces, and the whole state in torch's format: one tensor of the parameter's shape for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.exchange import allgather_object, broadcast_object
from sirtaki.native import core
from sirtaki.torch.collectives.rooted import gather
from sirtaki.torch.sharding.pieces import Piece, Pieces, flat, laid_out_like

MASTER = "master_weight"  # in the state of a parameter of 16 bits: its float32 weights
ELSEWHERE = "sirtaki_state_is_on_rank"  # in the state_dict of the ranks that did not get the whole state
_SAMPLE = 256  # elements of each tensor that the ranks compare when they load


def is_divided(key: str, value: Any, like: torch.Tensor) -> bool:
    """Whether this entry of a state has an element for each element of the parameter, or of its piece."""
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == like.shape


def take_whole(states: dict[Any, Any], piece: Piece, whole: dict[str, Any]) -> None:
    """This rank's part of a parameter's whole state. Elements get the piece's dtype, as torch's own loading does."""
    taken = dict(whole)
    master = taken.pop(MASTER, None)
    if master is not None and piece.has_master:
        piece.tensor.copy_(_own_part(piece, master))
    if not piece.is_updated:
        return
    for key, value in taken.items():
        if is_divided(key, value, piece.parameter):
            dtype = piece.tensor.dtype if value.is_floating_point() else value.dtype
            taken[key] = _own_part(piece, value).to(piece.tensor.device, dtype, copy=True)
        elif isinstance(value, torch.Tensor):
            taken[key] = value.clone()
    states[piece.tensor] = taken


def _own_part(piece: Piece, whole: torch.Tensor) -> torch.Tensor:
    return flat(laid_out_like(whole, piece.parameter))[piece.start : piece.stop]


def whole_states(pieces: Pieces, listed: Sequence[Piece], names: Sequence[str], states: Any) -> dict[int, Any] | None:
    """By the parameter's number, in host memory of the first rank of the set; None on the other ranks. Every rank calls
    it. One tensor at a time is gathered, so that only the first rank needs memory for whole states.
    """
    own = [_with_master(piece, states.get(piece.tensor, {})) for piece in listed]
    if pieces.ranks == 1:
        return {n: _whole(piece, own[n], own[n]) for n, piece in enumerate(listed) if own[n]}
    group, root = pieces.process_set.process_set_id or 0, pieces.process_set.ranks[0]
    # The first rank has a piece of every parameter, so it knows what there is.
    plan = broadcast_object([_divided(piece, own[n]) for n, piece in enumerate(listed)], root, "state_dict.plan", group)
    found: dict[int, Any] = {}
    for number, (piece, planned) in enumerate(zip(listed, plan, strict=True)):
        gathered = {}
        for key, dtype in planned.items():
            part = own[number].get(key, torch.empty(0, dtype=dtype)).detach().cpu()
            name = f"state_dict.{names[number]}.{key}"
            gathered[key] = gather(part, root, name, pieces.process_set)
        if pieces.rank == 0 and own[number]:
            found[number] = _whole(piece, own[number], gathered)
    return found if pieces.rank == 0 else None


def _with_master(piece: Piece, held: dict[str, Any]) -> dict[str, Any]:
    return {**held, MASTER: piece.tensor} if piece.has_master else held


def _divided(piece: Piece, held: dict[str, Any]) -> dict[str, torch.dtype]:
    return {key: value.dtype for key, value in held.items() if is_divided(key, value, piece.tensor)}


def _whole(piece: Piece, held: dict[str, Any], gathered: dict[str, Any]) -> dict[str, Any]:
    """All entries of one parameter's state. gathered: the divided ones, all elements in the order of memory."""
    whole = {}
    for key, value in held.items():
        if is_divided(key, value, piece.tensor):
            like = piece.parameter
            entry = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype)
            flat(entry).copy_(gathered[key])
            whole[key] = entry
        else:
            whole[key] = value.clone() if isinstance(value, torch.Tensor) else value
    return whole


def problem_of(given: Any, groups: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Why this is no whole state of an optimizer with these groups; "" if it is."""
    if not isinstance(given, dict) or not isinstance(given.get("param_groups"), list) or "state" not in given:
        return f"a state_dict has 'state' and 'param_groups', got {type(given).__name__} {str(given)[:80]}"
    if ELSEWHERE in given:
        return (
            f"this state_dict has no state: state_dict() gives the whole state to rank {given[ELSEWHERE]} only. Save "
            "what that rank gets, and load it on every rank"
        )
    saved = [len(group["params"]) for group in given["param_groups"]]
    own = [len(group["params"]) for group in groups]
    if saved != own:
        return f"the state_dict has groups of {saved} parameters, the optimizer has groups of {own}"
    parameters = [parameter for group in groups for parameter in group["params"]]
    for number, (parameter, key) in enumerate(zip(parameters, keys_of(given), strict=True)):
        for entry, value in given["state"].get(key, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                return (
                    f"the state_dict has {entry} of shape {tuple(value.shape)} for {names[number]}, whose shape is "
                    f"{tuple(parameter.shape)}"
                )
    return ""


def keys_of(given: dict[str, Any]) -> list[Any]:
    """The parameters' keys in the state, in the optimizer's order."""
    return [key for group in given["param_groups"] for key in group["params"]]


def agree_on_loading(problem: str, given: Any, pieces: Pieces) -> None:
    """ValueError on all ranks if one cannot load its state_dict, or if they have different ones."""
    own = (core.rank(), problem, "" if problem else _digest(given))
    group = pieces.process_set.process_set_id or 0
    everyone = [own] if pieces.ranks == 1 else allgather_object(own, "load_state_dict", group)
    for rank, text, _ in everyone:
        if text:
            raise ValueError(f"load_state_dict on rank {rank}: {text}")
    first = everyone[0]
    for rank, _, digest in everyone:
        if digest != first[2]:
            raise ValueError(
                f"load_state_dict got another state on rank {rank} than on rank {first[0]}; every rank must load the "
                "same whole state"
            )


def _digest(given: dict[str, Any]) -> str:
    """Of all entries; of large tensors a sample."""
    digest = hashlib.sha256(repr(given["param_groups"]).encode())
    for number, key in enumerate(keys_of(given)):
        for entry, value in sorted(given["state"].get(key, {}).items()):
            shown: Any = value
            if isinstance(value, torch.Tensor):
                elements = value.detach().reshape(-1)
                sample = elements[:: max(1, len(elements) // _SAMPLE)].double()
                shown = [list(value.shape), str(value.dtype), sample.tolist()]
            digest.update(json.dumps([number, entry, shown], default=str).encode())
    return digest.hexdigest()
