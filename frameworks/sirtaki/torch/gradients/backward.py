"""Where a backward call begins and ends, as the hooks within it see it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from sirtaki.checks.call_site import internal_prefixes, site_at
from sirtaki.native import core

current_task: Callable[[], int] = torch._C._current_graph_task_id  # autograd's number of the backward under way

_BACKWARD = torch.autograd.backward.__code__
# Of an operation written in Python, as the one that checkpointing with use_reentrant makes.
_Operation = torch.autograd.function.BackwardCFunction
_OF_OPERATION = tuple(
    getattr(_Operation, name).__code__ for name in ("apply", "apply_boxed") if hasattr(_Operation, name)
)


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what torch.compile must leave alone where a program that is compiled calls it. Costs nothing elsewhere."""
    apart = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return apart(*args)
        return function(*args)

    return call


def notify_at_end(step: core.GradientStep, ended: Callable[[], None], begin: Callable[[], None]) -> str:
    """Calls back when the backward under way ends; until then the step listens. Returns where the program called it.

    In one that another one has started it does neither, for its end is not the end. If an operation did so, `begin` is
    called once that is over, in the other backward, which may meet no parameter itself.
    """
    # The frames of autograd's threads, one for each GPU, begin with such an operation, and have none of the program.
    file, line, calls, operation = core.look_outward(internal_prefixes(), _BACKWARD, _OF_OPERATION)
    if operation is not None:
        _call_after(operation, begin)
    elif calls <= 1:
        torch.autograd.Variable._execution_engine.queue_callback(_End(step, ended))
    return site_at(file, line)


class _End:
    """A backward that fails drops it uncalled, and then the step listens no more."""

    _step: core.GradientStep | None = None  # also where torch.compile makes one without calling __init__

    def __init__(self, step: core.GradientStep, ended: Callable[[], None]) -> None:
        self._step = step
        self._ended = ended
        step.listening = True

    def __call__(self) -> None:
        self._step.listening = False
        self._step = None
        self._ended()

    def __del__(self) -> None:
        if self._step is not None:
            self._step.listening = False


def _call_after(operation: Any, begin: Callable[[], None]) -> None:
    def once(*gradients: Any) -> None:
        handle.remove()  # the graph may be retained
        begin()

    handle = operation.register_hook(once)
