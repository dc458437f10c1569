"""Training programs drawn at random, which a rank runs on its own part and one process runs on the whole.

A program is a list of actions, the same on all ranks; each rank's losses and the parameters that it uses differ. The
joined run takes the mean of all ranks' losses, so that both must end with the same parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import sirtaki.torch as hvd

Action = tuple[Any, ...]
STEPS = 6


@dataclass
class Program:
    """What does not change during the run, and the actions."""

    optimizer: str = "sgd"
    passes: int = 1
    layout: str = "one"  # how parameters belong to optimizers
    named: bool = True
    reordered: bool = False  # on the last rank
    options: dict[str, Any] = field(default_factory=dict)
    early_hook: bool = False
    actions: list[Action] = field(default_factory=list)


def draw(seed: int) -> Program:
    """The program of this number."""
    rng = random.Random(seed)
    program = Program(
        optimizer=rng.choice(("sgd", "momentum", "adam")),
        passes=rng.choice((1, 1, 1, 2)),
        layout=rng.choice(("one", "one", "one", "apart", "shared", "overlapping")),
        named=rng.random() < 0.7,
        options=rng.choice(({}, {}, {"groups": 2}, {"gradient_predivide_factor": 2.0})),
        early_hook=rng.random() < 0.2,
    )
    program.reordered = program.named and program.layout == "one" and rng.random() < 0.3
    # Ranks that use different parameters would be refused one by one where they forget to step or to clear.
    tidy = rng.random() < 0.6
    # A hook runs once for each pass of each rank, which a joined run cannot repeat.
    differ = tidy and program.layout == "one" and not (program.early_hook and program.passes > 1)
    uses = ("all", "some", "by rank") if differ else ("all", "some")
    changes = ("freeze", "unfreeze", "add", "replace", "remove", *(() if tidy else ("late hook",)))
    afterwards = ("by hand", "clip", "halve", "detach", "scale", "drop", "synchronize")
    for _ in range(STEPS):
        zero = rng.choice(("none", "zeros", "model none", "model zeros", "none" if tidy else "nothing"))
        first = tidy or rng.random() < 0.5
        if first:
            program.actions.append(("zero", zero))
        if rng.random() < 0.3:
            program.actions.append((rng.choice(changes), rng.randrange(100)))
        for _ in range(program.passes if tidy or rng.random() < 0.9 else 1):
            program.actions.append(("backward", rng.randrange(1 << 30), rng.choice(uses)))
        if rng.random() < 0.4:
            # A rank whose backward reaches no parameter reduces at the step, when others have done so before.
            uneven = any(action[-1] == "by rank" for action in program.actions[-program.passes :])
            program.actions.append((rng.choice(afterwards[1:] if uneven else afterwards), rng.randrange(100)))
        if tidy or rng.random() < 0.9:
            program.actions.append(("step", rng.randrange(100)))
        if not first:
            program.actions.append(("zero", zero))
    return program


def multiply_by(factor: float) -> Callable[[torch.Tensor], None]:
    """A hook on a gradient that has been accumulated."""

    def multiply(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(factor)

    return multiply


class Run:
    """One run of a program: as one rank of several, or of all of them joined (rank -1)."""

    def __init__(self, program: Program, rank: int, size: int) -> None:
        self.program = program
        self.ranks = range(size) if rank < 0 else (rank,)
        self.rank, self.size = rank, size
        self.parameters = [self._parameter(number, 1 + number % 3) for number in range(5)]
        self.late: set[int] = set()
        if program.early_hook:
            self.parameters[1].register_post_accumulate_grad_hook(multiply_by(2))
        sets = {
            "one": [self.parameters],
            "apart": [self.parameters[:2], self.parameters[2:]],
            "shared": [self.parameters, self.parameters],
            "overlapping": [self.parameters[:3], self.parameters[2:]],
        }[program.layout]
        self.optimizers = [self._optimizer(listed) for listed in sets]

    def _parameter(self, number: int, size: int) -> torch.nn.Parameter:
        values = torch.linspace(-1, 1, size, dtype=torch.float64) + 0.1 * number
        return torch.nn.Parameter(values)

    def _optimizer(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        make: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "sgd": lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1),
            "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
        }
        listed = list(parameters)
        if self.program.reordered and self.rank == self.size - 1:
            listed.reverse()
        optimizer = make[self.program.optimizer](listed)
        if self.rank < 0:
            return optimizer
        names = []
        if self.program.named:
            numbers = {id(p): number for number, p in enumerate(self.parameters)}
            names = [(f"p{numbers[id(p)]}", p) for p in listed]
        options = {"backward_passes_per_step": self.program.passes, **self.program.options}
        return hvd.DistributedOptimizer(optimizer, names or None, **options)

    def run(self) -> list[list[float]]:
        """The parameters at the end."""
        for action in self.program.actions:
            getattr(self, f"_{action[0].replace(' ', '_')}")(*action[1:])
        return [parameter.detach().tolist() for parameter in self.parameters]

    def _trained(self) -> list[torch.nn.Parameter]:
        """Those that an optimizer has; others are not reduced."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        kept = {id(parameter) for group in groups for parameter in group["params"]}
        return [parameter for parameter in self.parameters if id(parameter) in kept]

    def _pick(self, number: int) -> torch.nn.Parameter:
        return self.parameters[number % len(self.parameters)]

    def _factor(self, seed: int, rank: int, number: int) -> float:
        return random.Random(f"{seed} {rank} {number}").uniform(-1, 1)

    def _loss(self, seed: int, which: str, rank: int) -> torch.Tensor:
        """Of one rank; "by rank": a rank uses parameters that others do not."""
        loss = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters):
            chosen = random.Random(f"{seed} {number} {rank if which == 'by rank' else ''}").random()
            if which == "all" or chosen < 0.6:
                loss = loss + self._factor(seed, rank, number) * (parameter + 0.5 * parameter.square()).sum()
        return loss

    def _backward(self, seed: int, which: str) -> None:
        loss = sum(self._loss(seed, which, rank) for rank in self.ranks) / len(self.ranks)
        if loss.requires_grad:
            loss.backward()

    def _step(self, number: int) -> None:
        self.optimizers[number % len(self.optimizers)].step()

    def _zero(self, how: str) -> None:
        if how.startswith("model"):
            for parameter in self.parameters:
                if how.endswith("none"):
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.detach_().zero_()
        elif how != "nothing":
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=how == "none")

    # Changes of what is trained.

    def _freeze(self, number: int) -> None:
        self._pick(number).requires_grad_(False)

    def _unfreeze(self, number: int) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def _add(self, number: int) -> None:
        self.parameters.append(self._parameter(len(self.parameters), 2))
        self.optimizers[number % len(self.optimizers)].add_param_group({"params": [self.parameters[-1]]})

    def _replace(self, number: int) -> None:
        old = self._pick(number)
        new = torch.nn.Parameter(old.detach().repeat(1 + number % 2))
        self.parameters[number % len(self.parameters)] = new
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [new if parameter is old else parameter for parameter in group["params"]]

    def _remove(self, number: int) -> None:
        gone = self._pick(number)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if parameter is not gone]

    def _late_hook(self, number: int) -> None:
        parameter = self._pick(number)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(multiply_by(3))

    # Between backward and step.

    def _synchronize(self, number: int) -> None:
        for optimizer in self.optimizers if self.rank >= 0 else ():
            optimizer.synchronize()

    def _clip(self, number: int) -> None:
        self._synchronize(number)
        torch.nn.utils.clip_grad_norm_(self._trained(), 0.1)

    def _by_hand(self, number: int) -> None:
        for index, parameter in enumerate(self.parameters):
            if (number >> index) & 1 and parameter.requires_grad:
                values = [self._factor(number, rank, index) for rank in self.ranks]
                parameter.grad = torch.full_like(parameter, sum(values) / len(values), requires_grad=False)

    def _halve(self, number: int) -> None:
        self._synchronize(number)
        parameter = self._pick(number)
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 0.5

    def _detach(self, number: int) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.detach()

    def _scale(self, number: int) -> None:
        self._synchronize(number)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    def _drop(self, number: int) -> None:
        self._synchronize(number)
        self._pick(number).grad = None
