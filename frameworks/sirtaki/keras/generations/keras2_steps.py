"""The class in front of the user's class, in the bases of a distributed optimizer of Keras 2.

In Keras 2 `fit`, `minimize` and all others apply gradients by `apply_gradients`: of optimizers, legacy optimizers and
loss-scaling ones. There gradients are summed over the passes and reduced before anything else uses them: before the
loss scale checks that they are finite, and before clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.keras.attachment import (
    Attachment,
    attachment_of,
    compare_ranks,
    complete,
    reduce_gradients,
    sums_of_passes,
)
from sirtaki.keras.distributed import Distributed, inner_delegated
from sirtaki.tensorflow.gradients.aggregation import LocalGradientAggregationHelper

Pairs = Sequence[tuple[Any, Any]]

do_not_convert = tf.autograph.experimental.do_not_convert


class Averaged(Distributed):
    """Common to all of them. Pairs are (gradient, variable)."""

    _skips_with = True  # value of the positional argument that skips tf.distribute's aggregation

    @do_not_convert
    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        """The wrapped class's apply_gradients() on reduced gradients. RuntimeError if the caller skips aggregation."""
        attachment, pairs = attachment_of(self), list(grads_and_vars)
        if not pairs or attachment.delegated:
            return self._apply(pairs, args, kwargs)
        if self._skips(args, kwargs) and attachment.active():
            self._require_aggregated(attachment)
            return self._step(pairs, args, kwargs)
        attachment.begin()
        grads, variables = zip(*pairs, strict=True)
        passes = _passes(self, attachment)
        reduced = passes.compute_gradients(grads, variables)
        whole = list(zip(reduced, variables, strict=True))
        return passes.apply_gradients(lambda: self._step(whole, args, kwargs), reduced)

    def _step(self, pairs: list[tuple[Any, Any]], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        done = self._apply(pairs, args, kwargs)
        compare_ranks(self, [variable for _, variable in pairs])
        return done

    def _apply(self, pairs: list[tuple[Any, Any]], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        attachment = attachment_of(self)
        attachment.applying = True
        try:
            with inner_delegated(self):
                return super().apply_gradients(pairs, *args, **kwargs)
        finally:
            attachment.applying = attachment.reduced = False

    def _skips(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the caller says that the gradients are already aggregated."""
        return (
            bool(kwargs.get("skip_gradients_aggregation"))
            or not kwargs.get("experimental_aggregate_gradients", True)
            or any(flag is self._skips_with for flag in args)
        )

    def _require_aggregated(self, attachment: Attachment) -> None:
        if not attachment.reduced:
            raise RuntimeError(
                f"{type(self).__name__}.apply_gradients() was called without aggregation, so each rank would apply "
                "its own gradients. Remove that argument. If you need the reduced gradients before, call "
                "aggregate_gradients(); or reduce them yourself and do not wrap the optimizer"
            )


class AveragedOptimizer(Averaged):
    """For subclasses of tf_keras.optimizers.Optimizer."""

    @do_not_convert
    def aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """The pairs with reduced gradients; apply them with skip_gradients_aggregation=True."""
        attachment, pairs = attachment_of(self), list(grads_and_vars)
        if attachment.applying or attachment.delegated or not pairs or not attachment.active():
            return super().aggregate_gradients(pairs)
        if attachment.options.backward_passes_per_step > 1:
            raise RuntimeError(
                f"aggregate_gradients() does not work with backward_passes_per_step="
                f"{attachment.options.backward_passes_per_step}; call apply_gradients()"
            )
        grads, variables = zip(*pairs, strict=True)
        return list(zip(_reduced(self, grads, variables), variables, strict=True))

    def update_step(self, gradient: Any, variable: Any) -> Any:
        attachment_of(self).require_reduced(self)
        return super().update_step(gradient, variable)


class AveragedLegacy(Averaged):
    """For subclasses of tf_keras.optimizers.legacy.Optimizer."""

    _skips_with = False

    def _distributed_apply(self, *args: Any, **kwargs: Any) -> Any:
        attachment_of(self).require_reduced(self)
        return super()._distributed_apply(*args, **kwargs)


def _reduced(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    if not attachment_of(optimizer).active():
        return sums_of_passes(optimizer, grads)
    return reduce_gradients(optimizer, complete(optimizer, grads, variables), variables)


def _passes(optimizer: Any, attachment: Attachment) -> LocalGradientAggregationHelper:
    """The helper that sums gradients; made once, since it holds the sums. It divides them by the number of passes, as
    Keras 3 does and reduce_gradients() expects.
    """
    if attachment.passes is None:
        options = attachment.options
        attachment.passes = LocalGradientAggregationHelper(
            options.backward_passes_per_step,
            lambda grads, variables: _reduced(optimizer, grads, variables),
            options.sparse_as_dense,
            average_aggregated_gradients=True,
        )
    return attachment.passes
