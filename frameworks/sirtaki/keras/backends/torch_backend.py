"""Keras on PyTorch. See sirtaki.keras.backends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import torch

import sirtaki.torch as adapter
from sirtaki.checks.parameter_check import ParameterCheck
from sirtaki.keras.agreement import DENSE, NONE
from sirtaki.keras.options import Options
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, require_id
from sirtaki.reduce_ops import Max
from sirtaki.torch.compression import Compression as Compression
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.handles import synchronize
from sirtaki.torch.parameter_check import described

failures_of_the_job = contextlib.nullcontext
VARIABLES = (keras.Variable, torch.Tensor)
Unit = tuple[str, Sequence[torch.Tensor], Sequence[Any]]


def in_graph() -> bool:
    return False


def run_outside_graph(function: Callable[[], None]) -> None:
    function()


def require_alone(process_set: ProcessSet) -> None:
    """Nothing to check: no step is compiled."""


def have_values(variables: Sequence[Any]) -> bool:
    return True


def kind(gradient: Any) -> int:
    return NONE if gradient is None else DENSE


def zeros(variable: Any, _kind: int) -> torch.Tensor:
    return torch.zeros_like(_tensor(variable), requires_grad=False)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def scaled(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    return gradient * factor


def _tensor(variable: Any) -> torch.Tensor:
    return variable.value if isinstance(variable, keras.Variable) else variable


def reduce(units: Sequence[Unit], options: Options) -> list[list[torch.Tensor]]:
    """Overwrites gradients that the parameters hold; leaves others unchanged."""
    group = require_id(options.process_set)
    how = (options.op, *options.scales, group)
    started = []
    with torch.no_grad():
        for name, gradients, variables in units:
            pairs = [
                _wire(gradient, variable, options) for gradient, variable in zip(gradients, variables, strict=True)
            ]
            tensors = [tensor for tensor, _, _ in pairs]
            outputs = [output for _, output, _ in pairs]
            started.append((verbs.start_allreduce(tensors, name, how, outputs=outputs), [ctx for _, _, ctx in pairs]))
        reduced = [
            [options.compression.decompress(result, ctx) for result, ctx in zip(results, contexts, strict=True)]
            for results, (_, contexts) in zip(_all_results([handle for handle, _ in started]), started, strict=True)
        ]
    core.end_step()
    return reduced


def _all_results(handles: Sequence[int]) -> list[Any]:
    """The results in order. Waits for all, even if one fails, so that no request stays behind."""
    results, failures = [], []
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return results


def _wire(gradient: torch.Tensor, variable: Any, options: Options) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """(tensor to send, tensor for the result, context for decompress())."""
    gradient = dense(gradient)
    tensor, ctx = options.compression.compress(gradient.detach())
    own = _tensor(variable) if variable is not None else None
    in_place = own is None or gradient is own.grad or tensor.data_ptr() != gradient.data_ptr()
    tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    return tensor, tensor if in_place else torch.empty_like(tensor), ctx


def scatter(units: Sequence[tuple[str, Sequence[torch.Tensor]]], options: Options) -> list[list[torch.Tensor]]:
    before, after = options.scales
    with torch.no_grad():
        return [
            adapter.grouped_reducescatter(
                [row.detach().contiguous() for row in rows],
                name=name,
                compression=options.compression,
                op=options.op,
                process_set=options.process_set,
                prescale_factor=before,
                postscale_factor=after,
            )
            for name, rows in units
        ]


def gather(units: Sequence[tuple[str, Sequence[torch.Tensor]]], options: Options) -> list[list[torch.Tensor]]:
    with torch.no_grad():
        whole = [
            adapter.grouped_allgather([row.detach() for row in rows], name=name, process_set=options.process_set)
            for name, rows in units
        ]
    core.end_step()
    return whole


def reduce_max(tensors: Sequence[torch.Tensor], name: str, options: Options) -> list[torch.Tensor]:
    with torch.no_grad():
        return adapter.grouped_allreduce(
            [tensor.detach().contiguous() for tensor in tensors], name=name, op=Max, process_set=options.process_set
        )


def after_step(check: ParameterCheck, variables: Sequence[Any], process_set: int) -> None:
    check.after_step(lambda: [described(_name(v), _tensor(v)) for v in variables], process_set)


def _name(variable: Any) -> str:
    return getattr(variable, "path", None) or "without a name"


def check_parameters(variables: Sequence[Any], process_set: ProcessSet) -> None:
    adapter.check_parameters([(_name(v), _tensor(v)) for v in variables], process_set)


def assign_root_values(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    tensors = [(f"variable.{i}", _tensor(variable)) for i, variable in enumerate(variables)]
    adapter.broadcast_parameters(tensors, root_rank, process_set)


def _from_value(value: Any) -> torch.Tensor:
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    array = np.asarray(value)
    return torch.as_tensor(array.astype(np.float32) if isinstance(value, float) else array)


def allreduce(value: Any, **arguments: Any) -> torch.Tensor:
    return adapter.allreduce(_from_value(value), **arguments)


def allgather(value: Any, **arguments: Any) -> torch.Tensor:
    return adapter.allgather(_from_value(value), **arguments)


def broadcast(value: Any, root_rank: int, **arguments: Any) -> torch.Tensor:
    return adapter.broadcast(_from_value(value), root_rank, **arguments)


def reducescatter(value: Any, **arguments: Any) -> torch.Tensor:
    return adapter.reducescatter(_from_value(value), **arguments)
