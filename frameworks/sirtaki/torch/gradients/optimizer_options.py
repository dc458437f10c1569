"""What DistributedOptimizer was asked for, checked; can be pickled and copied with the optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sirtaki.checks.arguments import equal_parts
from sirtaki.process_sets import ProcessSet
from sirtaki.torch.compression import Compressor


@dataclass
class Options:
    """names: of the optimizer's parameters in order, without verb. groups: numbers of parameters that travel
    together.
    """

    names: list[str]
    compression: type[Compressor]
    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    groups: list[list[int]]
    group_count: int
    sparse_as_dense: bool
    process_set: ProcessSet
    sharded: bool = False
    free_gradients: bool = False
    number: int = 0  # among optimizers with the same names of parameters; 0: not known yet

    @property
    def group(self) -> int:
        """The id of the process set."""
        return self.process_set.process_set_id or 0

    @property
    def first_name(self) -> str:
        """Equal on all ranks, also if their parameters are in another order. No optimizer of the same number has it."""
        return min(self.names, default="")

    def name_of(self, number: int) -> str:
        """The name of a parameter; those that were added later have only a number."""
        return self.names[number] if number < len(self.names) else f"{self.first_name}.added.{number}"

    def give_number(self) -> None:
        """Gives the optimizer a number, so that no two optimizers with one number share a name.

        Every rank must make such optimizers in the same order. A copy gets its number when it is first used, for a
        rank may make one for itself, to save it for example.
        """
        keys = [(name, self.group) for name in self.names or [""]]
        self.number = 1 + max(_highest.get(key, 0) for key in keys)
        _highest.update(dict.fromkeys(keys, self.number))

    @property
    def prefix(self) -> str:
        """Of the names of all requests."""
        if not self.number:
            self.give_number()
        return "" if self.number == 1 else f"optimizer{self.number}."

    def unused_name(self, number: int, used: Container[str], earlier: str | None) -> str:
        """The same for a parameter that comes to be at that place later; earlier: the name of the one that was there.

        It gets that name if the other one is gone, for ranks may hold their parameters in different orders.
        """
        name = self.name_of(number) if earlier is None else earlier
        if not name or name in used:
            name = f"{self.first_name}.added.{number}"
        tries, unique = 1, name
        while unique in used:
            tries += 1
            unique = f"{name}.{tries}"
        return unique

    def reduction(self) -> tuple[int, float, float]:
        """(op, prescale, postscale); the predivision changes the order of operations, not the result."""
        factor = self.gradient_predivide_factor
        return int(self.op), 1.0 / factor, factor

    def grouped(self, slots: Sequence[Any]) -> list[list[torch.Tensor]]:
        """The groups as parameters: those asked for by list, or `group_count` equal parts of these slots in order."""
        if self.group_count:
            return [[slot.parameter for slot in part] for part in equal_parts(slots, self.group_count)]
        by_name = {slot.name: slot.parameter for slot in slots}
        listed = [[by_name.get(self.name_of(number)) for number in group] for group in self.groups]
        return [[parameter for parameter in group if parameter is not None] for group in listed]


# The highest number of an optimizer that has a parameter of this name, by name and process set.
_highest: dict[tuple[str, int], int] = {}


def forget_numbers() -> None:
    """For a new job, whose ranks must give optimizers equal numbers, also if some processes are new."""
    _highest.clear()


def parameters_in(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    """All parameters, group by group."""
    return [parameter for group in groups for parameter in group["params"]]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The same of an optimizer's groups."""
    return parameters_in(optimizer.param_groups)


def checked_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> list[str]:
    """The name of each parameter in order. ValueError unless these are (name, tensor), distinct, and cover all."""
    groups = optimizer.param_groups
    if named_parameters is None:
        return [f"noname.{g}.{i}" for g, group in enumerate(groups) for i in range(len(group["params"]))]
    entries = list(named_parameters)
    for entry in entries:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                f"model.named_parameters(); got {type(entry).__name__} {entry!r:.80}"
            )
    names = [name for name, _ in entries]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    by_parameter = {id(parameter): name for name, parameter in entries}
    missing = [tuple(p.shape) for p in parameters_of(optimizer) if id(p) not in by_parameter]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Parameters without a name have the shapes {missing[:5]}"
        )
    return [by_parameter[id(parameter)] for parameter in parameters_of(optimizer)]


def checked_groups(optimizer: torch.optim.Optimizer, num_groups: int, groups: Any) -> tuple[list[list[int]], int]:
    """(lists of parameter numbers, number of equal groups); one of them empty or 0. ValueError for anything else."""
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=4)
        if groups is None:
            groups = num_groups
    if groups is None:
        return [], 0
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups should be a non-negative integer or a list of lists of tensors, got {groups}")
        return [], groups
    if not isinstance(groups, list) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups should be a non-negative integer or a list of lists of tensors, got {groups!r:.80}")
    numbers = {id(parameter): number for number, parameter in enumerate(parameters_of(optimizer))}
    seen: set[int] = set()
    for tensor in (tensor for group in groups for tensor in group):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"groups must consist of torch.Tensor, got {type(tensor).__name__} {tensor!r:.80}")
        if id(tensor) in seen:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} appears in groups more than once")
        seen.add(id(tensor))
    return [[numbers[id(tensor)] for tensor in group if id(tensor) in numbers] for group in groups], 0
