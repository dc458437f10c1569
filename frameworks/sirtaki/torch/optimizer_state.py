"""Converts an optimizer's whole state into a picklable skeleton and a list of host tensors, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorPlace:
    """Stands for the tensor with this number. on_host: the tensor is on the host, also if its parameter is on a GPU."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool
    requires_grad: bool


@dataclass(frozen=True)
class Skeleton:
    """groups: hyper-parameters and number of parameters of each group. state: by the parameter's number."""

    groups: list[tuple[dict[str, Any], int]]
    state: dict[int, Any]
    tensors: list[TensorPlace]


def _mapped(value: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """A copy of nested dicts, lists and tuples, in which change() has replaced every instance of `kind`."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(entry, change, kind) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, change, kind) for entry in value)
    return value


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def portable_state(optimizer: torch.optim.Optimizer, with_state: bool = True) -> tuple[Skeleton, list[torch.Tensor]]:
    """Does not change the optimizer. The tensors are contiguous and on the host; they may share the state's memory.

    with_state: not only the hyper-parameters.
    """
    tensors: list[torch.Tensor] = []
    places: list[TensorPlace] = []

    def place(tensor: torch.Tensor) -> TensorPlace:
        on_host = tensor.device.type == "cpu"
        places.append(TensorPlace(len(places), tuple(tensor.shape), tensor.dtype, on_host, tensor.requires_grad))
        tensors.append(tensor.detach().cpu().contiguous())
        return places[-1]

    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append((_mapped(options, place, torch.Tensor), len(group["params"])))
    numbers = {id(parameter): number for number, parameter in enumerate(_parameters(optimizer))}
    state = {
        numbers.get(id(key), key): _mapped(dict(value) if isinstance(value, dict) else value, place, torch.Tensor)
        for key, value in (optimizer.state.items() if with_state else ())
    }
    return Skeleton(groups, state, places), tensors


def apply_state(
    optimizer: torch.optim.Optimizer, skeleton: Skeleton, tensors: list[torch.Tensor], with_state: bool = True
) -> None:
    """Replaces the optimizer's hyper-parameters, and its state. ValueError if its groups differ from the skeleton's."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    expected = [count for _, count in skeleton.groups]
    if sizes != expected:
        raise ValueError(f"the optimizer has groups of {sizes} parameters, the root's has {expected}")
    parameters = _parameters(optimizer)

    def fill(device: torch.device) -> Callable[[TensorPlace], torch.Tensor]:
        def change(place: TensorPlace) -> torch.Tensor:
            tensor = tensors[place.number]
            tensor = tensor if place.on_host else tensor.to(device)
            return tensor.requires_grad_(place.requires_grad)

        return change

    for group, (options, _) in zip(optimizer.param_groups, skeleton.groups, strict=True):
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        for key in [key for key in group if key != "params" and key not in options]:
            del group[key]
        group.update(_mapped(options, fill(device), TensorPlace))
    if not with_state:
        return
    optimizer.state.clear()
    for key, value in skeleton.state.items():
        owner = parameters[key] if isinstance(key, int) else key
        device = owner.device if isinstance(owner, torch.Tensor) else torch.device("cpu")
        optimizer.state[owner] = _mapped(value, fill(device), TensorPlace)
