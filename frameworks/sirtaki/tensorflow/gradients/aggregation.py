"""Several backward passes for one step: each rank sums its gradients, and the last pass reduces the sums."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki import settings
from sirtaki.checks.arguments import checked_passes
from sirtaki.job.rank import renewal

do_not_convert = tf.autograph.experimental.do_not_convert

Reduce = Callable[[list[Any], list[Any]], list[Any]]
_helpers: weakref.WeakSet[LocalGradientAggregationHelper] = weakref.WeakSet()


def _forget_passes() -> None:
    """Other ranks of an elastic job may be new, and have no passes."""
    if settings.flag("ELASTIC"):
        for helper in list(_helpers):
            helper.forget_passes()


renewal.at_each_job(_forget_passes)


class LocalGradientAggregationHelper:
    """Accumulates gradients in its own variables, made at the first pass. For eager mode, functions and graphs.

    allreduce_func(grads, variables) reduces. average_aggregated_gradients: divides the sum by the number of passes. If
    an epoch ends between two steps, its last passes count towards the next step.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
    ) -> None:
        self._passes = checked_passes(backward_passes_per_step)
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._average = average_aggregated_gradients
        self._sums: dict[int, Any] = {}  # by the gradient's position
        self.counter: Any = None  # passes since the last step
        _helpers.add(self)

    @do_not_convert
    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds one pass. Returns the reduced gradients at the last pass of a step, zeros at the others.

        ValueError for IndexedSlices unless sparse_as_dense.
        """
        grads = [self._dense(grad) for grad in grads]
        if self._passes == 1:
            return self._reduce(grads, list(variables))
        with tf.init_scope():
            self._make_variables(variables)
        places = sorted(self._sums)
        sums = [self._added(i, grads[i]) for i in places]
        with tf.control_dependencies(sums):
            count = tf.convert_to_tensor(self.counter.assign_add(1))
        totals = tf.cond(
            tf.equal(count, self._passes),
            lambda: self._step(places, sums, [variables[i] for i in places]),
            lambda: [tf.zeros_like(total) for total in sums],
        )
        results: list[Any] = list(grads)
        for i, total in zip(places, totals, strict=True):
            results[i] = total
        return results

    @do_not_convert
    def apply_gradients(self, apply: Callable[[], Any], grads: Sequence[Any] = ()) -> Any:
        """Runs `apply` after the last pass of a step, otherwise nothing. Call it after compute_gradients().

        grads: the result of compute_gradients(). Needed in a graph of TensorFlow 1, where only this argument puts the
        two calls in order.
        """
        if self._passes == 1:
            return apply()

        def step() -> tf.Tensor:
            done = apply()
            with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
                return tf.identity(self.counter.assign(0))

        with tf.control_dependencies([grad for grad in grads if tf.is_tensor(grad)]):
            count = tf.identity(self.counter)
        return tf.cond(tf.equal(count, self._passes), step, lambda: tf.identity(count))

    def forget_passes(self) -> None:
        """Drops a step that is not complete."""
        if self.counter is not None and tf.executing_eagerly():
            for variable in (self.counter, *self._sums.values()):
                variable.assign(tf.zeros_like(variable))

    def _dense(self, grad: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        if self._passes > 1 and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices cannot be accumulated; use sparse_as_dense=True or one backward pass per step"
            )
        return tf.convert_to_tensor(grad) if self._sparse_as_dense else grad

    def _added(self, place: int, grad: Any) -> Any:
        total = self._sums[place] if grad is None else self._sums[place].assign_add(grad)
        return tf.convert_to_tensor(total)

    def _make_variables(self, variables: Sequence[Any]) -> None:
        """For all variables: one without a gradient now may get one in another pass, or have one on another rank."""
        if self.counter is None:
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="aggregation_counter")
        for i, variable in enumerate(variables):
            if tf.as_dtype(variable.dtype).is_floating and i not in self._sums:
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._sums[i] = tf.Variable(zeros, trainable=False, name=f"aggregated_gradient_{i}")

    def _step(self, places: list[int], sums: list[Any], variables: list[Any]) -> list[Any]:
        totals = sums
        if self._average:
            totals = [total / tf.cast(self._passes, total.dtype) for total in totals]
        reduced = self._reduce(totals, variables)
        with tf.control_dependencies(reduced):
            cleared = [self._sums[i].assign(tf.zeros_like(self._sums[i])) for i in places]
        with tf.control_dependencies(cleared):
            return [tf.identity(grad) for grad in reduced]
