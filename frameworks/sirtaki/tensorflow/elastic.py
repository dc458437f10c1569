"""Elastic training for TensorFlow: `hvd.elastic.run` and the states."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki.elastic import run as loop
from sirtaki.elastic.arrays import VariablesState
from sirtaki.elastic.state import ObjectState as ObjectState
from sirtaki.elastic.state import State as State
from sirtaki.tensorflow.ops.failures import of_the_job

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]  # noqa: F822  from __getattr__


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Calls func(state, ...) with the state synchronized, and again when ranks of an elastic job come or go.

    An UnknownError of a collective, after a rank has died, leads back to the last commit. Other errors are raised.
    """

    @functools.wraps(func)
    def converted(*args: Any, **kwargs: Any) -> Any:
        with of_the_job():
            return func(*args, **kwargs)

    return loop.run(converted)


class TensorFlowState(VariablesState):
    """Variables, and Python objects as keyword arguments, which become attributes.

    variables: a list; by default all global variables of TensorFlow 1. session: for graphs of TensorFlow 1. ValueError
    in eager mode without variables.

    >>> weight = tf.Variable([1.0])
    >>> state = hvd.elastic.TensorFlowState([weight], step=0)
    >>> _ = weight.assign([2.0])
    >>> state.restore()
    >>> weight.numpy().tolist()
    [1.0]
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None and tf.executing_eagerly():
            raise ValueError("TensorFlowState needs variables=[...]: there are no global variables in eager mode")
        self.variables = tf.compat.v1.global_variables() if variables is None else list(variables)
        self.session = session
        super().__init__(**kwargs)

    def _read(self) -> list[Any]:
        if self.session is not None:
            return self.session.run(self.variables)
        return [variable.numpy() for variable in self.variables]

    def _write(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            if self.session is not None:
                variable.load(value, self.session)
            else:
                variable.assign(value)


def __getattr__(name: str) -> Any:
    if name == "TensorFlowKerasState":  # importing Keras takes seconds
        from sirtaki.keras.elastic import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
