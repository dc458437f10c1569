"""Where a backward call begins and ends, as the hooks within it see it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from sirtaki.native import core

current_task: Callable[[], int] = torch._C._current_graph_task_id  # autograd's number of the backward under way

_BACKWARD = torch.autograd.backward.__code__
# Of an operation written in Python, as the one that checkpointing with use_reentrant makes.
_Operation = torch.autograd.function.BackwardCFunction
_OF_OPERATION = {getattr(_Operation, name).__code__ for name in ("apply", "apply_boxed") if hasattr(_Operation, name)}


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what torch.compile must leave alone where a program that is compiled calls it. Costs nothing elsewhere."""
    apart = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return apart(*args)
        return function(*args)

    return call


def notify_at_end(step: core.GradientStep, ended: Callable[[], None], begin: Callable[[], None]) -> None:
    """Calls back when the backward under way ends; until then the step listens.

    In one that another one has started it does neither, for its end is not the end. If an operation did so, `begin` is
    called once that is over, in the other backward, which may meet no parameter itself.
    """
    operation, calls = _look_outward()
    if operation is not None:
        _call_after(operation, begin)
    elif calls <= 1:
        torch.autograd.Variable._execution_engine.queue_callback(_End(step, ended))


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


def _look_outward() -> tuple[Any, int]:
    """The outermost operation written in Python whose backward is under way, or None; calls of backward on the stack.

    Autograd's threads, one for each GPU, have the frames of such an operation at their bottom and none of the program.
    """
    frame: FrameType | None = sys._getframe(1)
    operation, calls = None, 0
    while frame is not None:
        if frame.f_code in _OF_OPERATION:
            operation = frame.f_locals["self"]
        calls += frame.f_code is _BACKWARD
        frame = frame.f_back
    return operation, calls


def _call_after(operation: Any, begin: Callable[[], None]) -> None:
    def once(*gradients: Any) -> None:
        handle.remove()  # the graph may be retained
        begin()

    handle = operation.register_hook(once)
