"""Compares the ranks' variables, after an optimizer's update or when the program asks for it.

See sirtaki.checks.parameter_check. In a graph only checksums and comparison run in Python; the exchange is an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sirtaki.checks import parameter_check
from sirtaki.checks.parameter_check import Parameter, ParameterCheck
from sirtaki.exchange import framed, unframed
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import check_variables


def _name(variable: Any) -> str:
    return getattr(variable, "path", None) or getattr(variable, "name", None) or "without a name"


@tf.autograph.experimental.do_not_convert
def check_parameters(variables: Sequence[Any], process_set: ProcessSet = global_process_set) -> Any:
    """Compares the ranks' values bit by bit, by checksums. Every rank of the set must call it.

    variables: of TensorFlow or Keras, the same on every rank. In eager mode HorovodInternalError on every rank names
    the first variable that differs; in a graph it is an UnknownError. In a graph of TensorFlow 1, returns the operation
    to run.

    >>> hvd.check_parameters([tf.Variable([1.0])])  # no error: equal on all ranks
    """
    group = require_id(process_set)
    listed = check_variables(variables)
    if tf.executing_eagerly():
        parameter_check.check_equal(_described(listed), group)
        return None
    compared = _compared(listed, group, "check_parameters", lambda: "")
    return None if tf.inside_function() else compared


@tf.autograph.experimental.do_not_convert
def after_step(check: ParameterCheck, variables: Sequence[Any], process_set: int) -> Any:
    """Counts an update, and compares the variables if that is due. In a graph, returns the operation that does it."""
    if tf.executing_eagerly():
        check.after_step(lambda: _described(variables), process_set)
        return None
    due = tf.ensure_shape(tf.numpy_function(lambda: np.bool_(check.is_due()), [], tf.bool), [])

    def compared() -> tf.Tensor:
        with tf.control_dependencies([_compared(variables, process_set, check.what, lambda: check.when)]):
            return tf.constant(True)

    return tf.cond(due, compared, lambda: tf.constant(False)).op


def _described(variables: Sequence[Any]) -> list[Parameter]:
    return [Parameter.of(_name(variable), variable.numpy()) for variable in variables]


def _compared(variables: Sequence[Any], group: int, what: str, when: Callable[[], str]) -> tf.Operation:
    names = [_name(variable) for variable in variables]

    def own(*values: np.ndarray) -> np.ndarray:
        parameters = [Parameter.of(name, value) for name, value in zip(names, values, strict=True)]
        return np.frombuffer(framed(parameter_check.payload(parameters)), np.uint8)

    def check(joined: np.ndarray) -> np.bool_:
        parameter_check.compare(unframed(joined.tobytes()), names, when())
        return np.bool_(True)

    block = tf.ensure_shape(tf.numpy_function(own, [_read(variable) for variable in variables], tf.uint8), [None])
    (joined,) = verbs.allgather([block], what, group, ignore_name_scope=True)
    return tf.numpy_function(check, [joined], tf.bool).op


def _read(variable: Any) -> tf.Tensor:
    """The current value. A Keras variable wraps a TensorFlow variable."""
    return (variable if isinstance(variable, tf.Variable) else variable.value).read_value()
