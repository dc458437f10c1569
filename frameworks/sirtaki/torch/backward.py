"""Where a backward call begins and ends, as the hooks within it see it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from sirtaki.native import core

current_task: Callable[[], int] = torch._C._current_graph_task_id  # autograd's number of the backward under way

_BACKWARD = torch.autograd.backward.__code__


def tell_the_end(step: core.GradientStep, ended: Callable[[], None]) -> None:
    """Calls back when the backward under way ends; until then the step listens. Only in one that no other has started.

    In one that another one has started (checkpointing with use_reentrant) it does nothing: its end is not the end.
    """
    if not _is_nested():
        torch.autograd.Variable._execution_engine.queue_callback(_End(step, ended))


class _End:
    """A backward that fails drops it uncalled, and then the step listens no more."""

    __slots__ = ("_ended", "_step")

    def __init__(self, step: core.GradientStep, ended: Callable[[], None]) -> None:
        self._step: core.GradientStep | None = step
        self._ended = ended
        step.listening = True

    def __call__(self) -> None:
        self._step.listening = False
        self._step = None
        self._ended()

    def __del__(self) -> None:
        if self._step is not None:
            self._step.listening = False


def _is_nested() -> bool:
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        if frame.f_code is _BACKWARD:
            calls += 1
        frame = frame.f_back
    return calls > 1
