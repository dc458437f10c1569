"""Keras 2, as tf_keras. See sirtaki.keras.generations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, LossScaleOptimizerV3
from tf_keras.src.saving import object_registration

from sirtaki.checks.arguments import check_unsharded
from sirtaki.keras import hooks
from sirtaki.keras.generations.keras2_steps import AveragedLegacy, AveragedOptimizer
from sirtaki.keras.options import Options

_Legacy = tf_keras.optimizers.legacy.Optimizer
Optimizer = (tf_keras.optimizers.Optimizer, _Legacy)
Variable = tf.Variable
REDUCED_IN = "apply_gradients()"
INSTEAD = "Call that"
_NAMES = ("_keras_api_names", "_keras_api_names_v1")  # a class's own name in saved files


def install_hooks() -> None:
    """Keeps the optimizers' own jit_compile, which Keras 2 sets if there is a GPU: it compiles updates only."""
    hooks.install([LossScaleOptimizer, LossScaleOptimizerV3], tf_keras.Model)


def steps_for(optimizer: Any, options: Options) -> type:
    return AveragedLegacy if isinstance(optimizer, _Legacy) else AveragedOptimizer


def check_can_shard(optimizer: Any, wrapped: type) -> None:
    check_unsharded(True, optimizer)


def divide_state(optimizer: Any) -> None:
    """Never called: check_can_shard() refuses."""


def save_as(made: type, wrapped: type) -> None:
    for name in _NAMES:
        if name in wrapped.__dict__:
            setattr(made, name, wrapped.__dict__[name])
    names = object_registration._GLOBAL_CUSTOM_NAMES
    if wrapped in names:
        names[made] = names[wrapped]


def set_passes(optimizer: Any, options: Options) -> None:
    """Nothing to prepare: keras2_steps accumulates, as Keras 2 does not."""


def warn_of_passes(optimizer: Any, options: dict[str, Any]) -> None:
    """Nothing to warn of: a loaded optimizer does not accumulate."""


def build(optimizer: Any, variables: list[Any]) -> None:
    with tf.name_scope(optimizer._name if isinstance(optimizer, _Legacy) else _inner(optimizer).name or "optimizer"):
        if isinstance(optimizer, _Legacy):
            optimizer._create_all_weights(variables)
        else:
            optimizer.build(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Includes learning rate, hyperparameters and loss scale, which Keras 2 does not list as variables."""
    inner = _inner(optimizer)
    found = list(inner.weights if isinstance(inner, _Legacy) else inner.variables)
    if isinstance(inner, _Legacy):
        found += [inner._hyper[name] for name in sorted(inner._hyper)]
    else:
        found += [inner._learning_rate]
    scale = getattr(optimizer, "_loss_scale", None)
    found += list(getattr(scale, "_weights", {}).values())
    return [variable for variable in found if isinstance(variable, tf.Variable)]


def value_of(variable: Any) -> Any:
    return variable.numpy()


def rate_of(optimizer: Any) -> float:
    return float(tf_keras.backend.get_value(optimizer.learning_rate))


def velocities(optimizer: Any) -> list[Any]:
    """Those of SGD and RMSprop; other optimizers accumulate gradients instead."""
    optimizer = _inner(optimizer)
    if isinstance(optimizer, _Legacy):
        return [slots["momentum"] for slots in optimizer._slots.values() if "momentum" in slots]
    if not getattr(optimizer, "momentum", 0):
        return []
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or [])


def storage(variable: Any) -> Any:
    return variable


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)
