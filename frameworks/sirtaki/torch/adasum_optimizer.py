"""Adasum: each rank takes a local step; then the ranks combine the changes of the parameters, not the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from sirtaki.reduce_ops import Adasum
from sirtaki.torch.collectives.allreduce import allreduce_async_
from sirtaki.torch.gradients.optimizer_options import parameters_of
from sirtaki.torch.ops.handles import synchronize


class AdasumSteps:
    """parameter = start + Adasum over ranks of (parameter after the local step - start)."""

    def synchronize(self) -> None:
        """Does nothing: Adasum has nothing to wait for before the step."""

    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """A local step on this rank's gradients, and the combination of all ranks' changes."""
        self._opt_called = True
        options = self._distributed.options
        parameters = [parameter for parameter in parameters_of(self) if parameter.requires_grad]
        starts = [parameter.detach().clone(memory_format=torch.contiguous_format) for parameter in parameters]
        # The base classes are this one, ReducedSteps and the user's class. The local step is that of the user's class.
        local_step = self._local_step
        result = local_step(closure, *args, **kwargs) if closure is not None else local_step(*args, **kwargs)
        with torch.no_grad():
            self._combine(parameters, starts, options)
        self._distributed.compare_parameters(self)
        return result

    step.hooked = True
    step._wrapped_by_lr_sched = True

    def _combine(self, parameters: list[torch.Tensor], starts: list[torch.Tensor], options: Any) -> None:
        names = {id(p): options.name_of(number) for number, p in enumerate(parameters_of(self))}
        pending = []
        for parameter, start in zip(parameters, starts, strict=True):
            delta, ctx = options.compression.compress((parameter.detach() - start).contiguous())
            handle = allreduce_async_(delta, name=names[id(parameter)], op=Adasum, process_set=options.process_set)
            pending.append((handle, ctx))
        for parameter, start, (handle, ctx) in zip(parameters, starts, pending, strict=True):
            parameter.copy_(start + options.compression.decompress(synchronize(handle), ctx))
