"""Elastic training for Keras: `hvd.elastic.run`, the state, and callbacks that keep it up to date in fit()."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sirtaki.elastic import run as loop
from sirtaki.elastic.arrays import VariablesState
from sirtaki.elastic.state import ObjectState as ObjectState
from sirtaki.elastic.state import State as State
from sirtaki.keras import backends, generations
from sirtaki.keras.attachment import attachment_of
from sirtaki.keras.callbacks.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from sirtaki.keras.distributed import is_distributed

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Calls func(state, ...) with the state synchronized, and again when ranks of an elastic job come or go.

    After a rank has died, the model and the state go back to the last commit. Other errors are raised.
    """

    @functools.wraps(func)
    def converted(*args: Any, **kwargs: Any) -> Any:
        with backends.load().failures_of_the_job():
            return func(*args, **kwargs)

    return loop.run(converted)


class TensorFlowKerasState(VariablesState):
    """The weights of a model and the variables of its optimizer, and Python objects as keyword arguments.

    optimizer: by default that of model.compile(). backend: ignored; Horovod's programs pass it. ValueError if the model
    has not been built, for it has no weights yet.

    >>> model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    >>> state = hvd.elastic.KerasState(model, epoch=0)
    >>> state.epoch = 3
    >>> state.restore()
    >>> state.epoch
    0
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("the model must be built first; run `model.build(input_shape)`, or give it an Input layer")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        if is_distributed(self.optimizer) and attachment_of(self.optimizer).options.sharded:
            raise ValueError(
                f"{type(self).__name__} cannot keep an optimizer with shard_optimizer_state=True: each rank has a part "
                "of its state, which would be lost with the rank"
            )
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        generation = generations.load()
        found = list(self.model.weights)
        if self.optimizer is not None:
            generation.build(self.optimizer, self.model.trainable_variables)
            found += generation.variables_of(self.optimizer)
        return found

    def _read(self) -> list[Any]:
        value_of = generations.load().value_of
        return [value_of(variable) for variable in self._variables()]

    def _write(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)


class KerasState(TensorFlowKerasState):
    """TensorFlowKerasState by the name that programs of Keras use; for each backend."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)
