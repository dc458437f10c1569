"""The class in front of the user's class, in the bases of a distributed optimizer of Keras 3.

Keras 3's `apply_gradients` calls `apply`, which filters, unscales and accumulates gradients. It calls `_clip_gradients`
once for each update of the variables. Gradients are reduced there: after accumulation, before clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from sirtaki.keras import backends
from sirtaki.keras.attachment import attachment_of, compare_ranks, complete, key_of, reduce_gradients, sums_of_passes
from sirtaki.keras.distributed import Distributed, inner_delegated

OUTER: tuple[type, ...] = tuple(  # they pass gradients on to other optimizers; the second is new in Keras 3.13
    getattr(keras.optimizers, name)
    for name in ("LossScaleOptimizer", "MultiOptimizer")
    if hasattr(keras.optimizers, name)
)


class Distributed3(Distributed):
    """What all distributed optimizers of Keras 3 have in common."""

    def __reduce__(self) -> Any:
        from sirtaki.keras.saving import unpickled

        return unpickled, (super().__reduce__()[1], attachment_of(self).options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def _variables_of(
        self, gradients: Sequence[Any], trainable_variables: Sequence[Any] | None
    ) -> Sequence[Any] | None:
        """The variables of the gradients; None if there is nothing to apply. ValueError unless each gradient has a
        variable: some optimizers would apply a rank's own gradients without one.
        """
        if not gradients:
            return None
        found = self._trainable_variables if trainable_variables is None and self.built else trainable_variables
        if found is None or len(found) != len(gradients):
            raise ValueError(
                f"{type(self).__name__}.apply got {len(gradients)} gradients for "
                f"{'no' if found is None else len(found)} variables; give one for each variable, None where there is "
                "none, and build(variables) the optimizer before variables are left out of the call"
            )
        return list(found)


class AveragedSteps(Distributed3):
    """For optimizers that use BaseOptimizer.apply."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """The wrapped class's apply(), with gradients reduced. RuntimeError if it would apply them unreduced."""
        attachment = attachment_of(self)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if attachment.delegated or not attachment.begin():
            return super().apply(grads, trainable_variables)
        variables = self._variables_of(grads, trainable_variables)
        with attachment.step():
            if variables:
                grads = complete(self, grads, variables)
            result = super().apply(grads, trainable_variables)
            if grads and not self.gradient_accumulation_steps:
                attachment.require_reduced(self)
        compare_ranks(self, variables)
        return result

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> Any:
        attachment_of(self).variables = trainable_variables
        return super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        attachment = attachment_of(self)
        if not attachment.delegated:
            alone = not attachment.active()
            grads = sums_of_passes(self, grads) if alone else reduce_gradients(self, grads, attachment.variables)
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        attachment_of(self).require_reduced(self)
        return super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        attachment_of(self).require_reduced(self)
        return super().update_step(gradient, variable, learning_rate)

    def _overwrite_variables_directly_with_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> Any:
        """Scales and histories of 8-bit floats get the largest value of all ranks, so that variables stay equal."""
        attachment = attachment_of(self)
        if attachment.active() and not attachment.delegated:
            values = _overwriting(self, grads, vars)
            grads = [values.get(i, grad) for i, grad in enumerate(grads)]
            if len(values) == len(grads):
                attachment.reduced = True  # there are no other gradients
        return super()._overwrite_variables_directly_with_gradients(grads, vars)


def _overwriting(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> dict[int, Any]:
    """By position, the new values of overwritten variables: the largest of all ranks, or this rank's own if local."""
    attachment = attachment_of(optimizer)
    found = {
        i: grad
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if grad is not None and optimizer._overwrite_variable_with_gradient(variable)
    }
    if not attachment.active():
        return found
    shared = [i for i in found if key_of(optimizer, variables[i]) not in attachment.local]
    if shared:
        options = attachment.options
        name = f"{options.name or 'keras'}.overwrite"
        largest = backends.load().reduce_max([grads[i] for i in shared], name, options)
        found.update(zip(shared, largest, strict=True))
    return found


class AveragedOutside(Distributed3):
    """For optimizers that pass gradients on to others: LossScaleOptimizer, MultiOptimizer.

    They choose by the gradients which optimizer to call, so gradients are reduced before. If one rank has an infinity,
    all have it, and all skip the step.
    """

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        attachment = attachment_of(self)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = None
        if not attachment.delegated:
            alone = not attachment.begin()
            variables = self._variables_of(grads, trainable_variables)
            if variables:
                grads = self._whole(grads, variables, alone)
        with inner_delegated(self):
            result = super().apply(grads, trainable_variables)
        compare_ranks(self, variables)
        return result

    def _whole(self, grads: Sequence[Any], variables: Sequence[Any], alone: bool) -> list[Any]:
        """The gradients for the inner optimizers: reduced over all ranks and passes."""
        if not alone:
            grads = complete(self, grads, variables)
        values = _overwriting(self, grads, variables)
        others = [None if i in values else grad for i, grad in enumerate(grads)]
        result = sums_of_passes(self, others) if alone else reduce_gradients(self, others, variables)
        return [values.get(i, grad) for i, grad in enumerate(result)]
