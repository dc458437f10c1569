"""Keras 3. See sirtaki.keras.generations."""

from __future__ import annotations

import warnings
from typing import Any

import keras
from keras.src import api_export
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.saving import object_registration
from keras.src.trainers.trainer import Trainer

from sirtaki.keras import hooks
from sirtaki.keras.attachment import attachment_of
from sirtaki.keras.distributed import is_distributed
from sirtaki.keras.generations import keras3_sharded
from sirtaki.keras.generations.keras3_sharded import check_can_shard as check_can_shard
from sirtaki.keras.generations.keras3_sharded import divide_state as divide_state
from sirtaki.keras.generations.keras3_steps import OUTER, AveragedOutside, AveragedSteps
from sirtaki.keras.options import Options

Optimizer = keras.optimizers.Optimizer
Variable = keras.Variable
REDUCED_IN = "Optimizer._clip_gradients"
INSTEAD = "Let its apply() call super().apply()"


def install_hooks() -> None:
    hooks.install([LossScaleOptimizer], Trainer)


def steps_for(optimizer: Any, options: Options) -> type:
    if options.sharded:
        return keras3_sharded.ShardedSteps
    return AveragedOutside if isinstance(optimizer, OUTER) else AveragedSteps


def save_as(made: type, wrapped: type) -> None:
    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if wrapped in names:
            names[made] = names[wrapped]


def set_passes(optimizer: Any, options: Options) -> None:
    """Keras itself accumulates gradients; the passes become its gradient_accumulation_steps."""
    passes = options.backward_passes_per_step
    before = attachment_of(optimizer).options.backward_passes_per_step if is_distributed(optimizer) else 1
    if passes == before:
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None and isinstance(optimizer, OUTER):
        raise ValueError(
            f"backward_passes_per_step={passes} does not work with {type(optimizer).__name__}; give its optimizers "
            f"gradient_accumulation_steps={passes}"
        )
    target = optimizer if inner is None else inner
    given = target.gradient_accumulation_steps
    if before == 1 and given == passes:
        return  # a loaded optimizer accumulates already
    if before == 1 and given:
        raise ValueError(
            f"give backward_passes_per_step or gradient_accumulation_steps, not both; got {passes} and {given}"
        )
    if target.built:
        raise ValueError(
            f"backward_passes_per_step={passes} needs an optimizer that has not made its variables yet, for Keras adds "
            "those that accumulate when it makes the others; wrap a new optimizer"
        )
    target.gradient_accumulation_steps = passes if passes > 1 else None


def warn_of_passes(optimizer: Any, options: dict[str, Any]) -> None:
    steps = getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps
    if steps and "backward_passes_per_step" not in options:
        warnings.warn(
            f"the loaded optimizer averages {steps} gradients for each update. If it was made with "
            f"backward_passes_per_step={steps}, which adds them up, give load_model that argument too; 1 if it was not",
            stacklevel=3,
        )


def build(optimizer: Any, variables: list[Any]) -> None:
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(variables)
        optimizer.built = True


def variables_of(optimizer: Any) -> list[Any]:
    variables = list(optimizer.variables)
    if not is_distributed(optimizer):
        return variables
    return [variable for variable in variables if not keras3_sharded.is_piece_of_state(optimizer, variable)]


def value_of(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable)


def rate_of(optimizer: Any) -> float:
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def velocities(optimizer: Any) -> list[Any]:
    """Those of SGD and RMSprop; other optimizers accumulate gradients instead."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0):
        return []
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or [])


def storage(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable
