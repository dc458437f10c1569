"""Keras on TensorFlow. See sirtaki.keras.backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki.keras import generations
from sirtaki.keras.agreement import DENSE, NONE, SPARSE
from sirtaki.keras.options import Options
from sirtaki.process_sets import ProcessSet, require_id
from sirtaki.reduce_ops import Max
from sirtaki.tensorflow import parameter_check
from sirtaki.tensorflow.collectives.allgather import allgather as _allgather
from sirtaki.tensorflow.collectives.allgather import grouped_allgather
from sirtaki.tensorflow.collectives.allreduce import allreduce as _allreduce
from sirtaki.tensorflow.collectives.allreduce import grouped_allreduce
from sirtaki.tensorflow.collectives.broadcast import broadcast as _broadcast
from sirtaki.tensorflow.collectives.reducescatter import grouped_reducescatter
from sirtaki.tensorflow.collectives.reducescatter import reducescatter as _reducescatter
from sirtaki.tensorflow.compression import Compression as Compression
from sirtaki.tensorflow.functions import broadcast_variables
from sirtaki.tensorflow.gradients import step_end
from sirtaki.tensorflow.ops.failures import of_the_job
from sirtaki.tensorflow.ops.labels import in_xla
from sirtaki.tensorflow.ops.rank_and_size import size_op
from sirtaki.tensorflow.parameter_check import after_step as after_step

failures_of_the_job = of_the_job
VARIABLES = (generations.load().Variable, tf.Variable)
_storage = generations.load().storage
Unit = tuple[str, Sequence[Any], Sequence[Any]]


def in_graph() -> bool:
    return not tf.executing_eagerly()


def run_outside_graph(function: Callable[[], None]) -> None:
    with tf.init_scope():
        tf.autograph.experimental.do_not_convert(function)()


def require_alone(process_set: ProcessSet) -> None:
    """A step compiled on a single rank reduces nothing, and may run again after another init(). Not checked under XLA,
    which cannot compile the op for it.
    """
    if tf.executing_eagerly() or in_xla() or process_set.included() is False:
        return
    reason = (
        "this step was compiled by a rank alone and would leave its gradients as they are in a job of more ranks; "
        "compile the model again after init()"
    )
    tf.debugging.Assert(tf.equal(size_op(require_id(process_set)), 1), [reason])


def have_values(variables: Sequence[Any]) -> bool:
    return all(bool(_storage(variable).is_initialized()) for variable in variables)


def kind(gradient: Any) -> int:
    if gradient is None:
        return NONE
    return SPARSE if isinstance(gradient, tf.IndexedSlices) else DENSE


def zeros(variable: Any, kind: int) -> Any:
    variable = _storage(variable)
    if kind != SPARSE:
        return tf.zeros_like(variable)
    shape = tf.shape(variable)
    values = tf.zeros(tf.concat([[0], shape[1:]], 0), variable.dtype)
    return tf.IndexedSlices(values, tf.zeros([0], tf.int64), tf.cast(shape, tf.int64))


def dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient)


def scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def reduce(units: Sequence[Unit], options: Options) -> list[list[Any]]:
    """In a graph these are ops that run as soon as their gradients exist; outside of one, unit after unit."""
    before, after = options.scales
    results = []
    for name, gradients, _ in units:
        slices = any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        results.append(
            grouped_allreduce(
                [_wide_indices(gradient) for gradient in gradients],
                op=options.op,
                compression=options.compression,
                prescale_factor=1.0 if slices else before,
                postscale_factor=1.0 if slices else after,
                process_set=options.process_set,
                ignore_name_scope=True,
                name=name,
            )
        )
    ended = iter(step_end.announce([gradient for unit in results for gradient in unit]))
    return [[next(ended) for _ in unit] for unit in results]


def _wide_indices(gradient: Any) -> Any:
    """Ranks without rows send 64-bit indices, so all ranks must."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, tf.int64), gradient.dense_shape)


def scatter(units: Sequence[tuple[str, Sequence[Any]]], options: Options) -> list[list[Any]]:
    before, after = options.scales
    return [
        grouped_reducescatter(
            rows,
            op=options.op,
            compression=options.compression,
            prescale_factor=before,
            postscale_factor=after,
            process_set=options.process_set,
            ignore_name_scope=True,
            name=name,
        )
        for name, rows in units
    ]


def gather(units: Sequence[tuple[str, Sequence[Any]]], options: Options) -> list[list[Any]]:
    whole = [grouped_allgather(rows, name, True, options.process_set) for name, rows in units]
    ended = iter(step_end.announce([row for unit in whole for row in unit]))
    return [[next(ended) for _ in unit] for unit in whole]


def reduce_max(tensors: Sequence[Any], name: str, options: Options) -> list[Any]:
    return grouped_allreduce(tensors, op=Max, process_set=options.process_set, ignore_name_scope=True, name=name)


def check_parameters(variables: Sequence[Any], process_set: ProcessSet) -> None:
    parameter_check.check_parameters(variables, process_set)


def assign_root_values(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    broadcast_variables([_storage(variable) for variable in variables], root_rank, process_set)


def _from_value(value: Any) -> tf.Tensor:
    return tf.convert_to_tensor(_storage(value))


def allreduce(value: Any, **arguments: Any) -> tf.Tensor:
    return _allreduce(_from_value(value), **arguments)


def allgather(value: Any, **arguments: Any) -> tf.Tensor:
    return _allgather(_from_value(value), **arguments)


def broadcast(value: Any, root_rank: int, **arguments: Any) -> tf.Tensor:
    return _broadcast(_from_value(value), root_rank, **arguments)


def reducescatter(value: Any, **arguments: Any) -> tf.Tensor:
    return _reducescatter(_from_value(value), **arguments)
