"""Which Keras this process trains with, and the differences: Keras 3, or Keras 2 (tf_keras) if tf.keras is that.

Both modules in this package have the same names:

Optimizer                            the classes of optimizers that can be distributed
Variable                             the class of variables that optimizers train
steps_for(optimizer, options)        the class in front of the optimizer's class, in the bases of a distributed one
check_can_shard(optimizer, wrapped)  ValueError, with the reason, unless its state can be divided among the ranks
divide_state(optimizer)              does that, if the optimizer has some already
install_hooks()                      changes Keras itself for distributed optimizers
save_as(made, wrapped)               makes files name the wrapped class
set_passes(optimizer, options)       prepares for backward_passes_per_step
warn_of_passes(optimizer, options)   if a loaded optimizer accumulates and the options do not say so
build(optimizer, variables)          makes the optimizer's variables, which Keras otherwise makes in the first step
variables_of(optimizer)              all variables that a step changes, less those that differ by rank
value_of(variable)                   its value as an array of numpy, which may share the variable's memory
rate_of(optimizer)                   the current learning rate
velocities(optimizer)                its variables that are proportional to the learning rate
storage(variable)                    the backend's variable
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

# The accepted values are TensorFlow's; Keras 2 has no other backend.
IS_KERAS_2 = os.environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1") and (
    os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
)


def _keras_2() -> ModuleType:
    try:
        import tf_keras
    except ImportError as error:
        raise ImportError(
            f"TF_USE_LEGACY_KERAS is set, which asks for Keras 2, but tf_keras cannot be imported: {error}. Install "
            "tf_keras of TensorFlow's version, or unset the variable to use Keras 3"
        ) from error
    import tensorflow as tf

    if tf.keras.Model is not tf_keras.Model:
        raise ImportError(
            "TF_USE_LEGACY_KERAS was set after TensorFlow had been imported, so that tf.keras is not tf_keras; set it "
            "before"
        )
    return tf_keras


keras: ModuleType = _keras_2() if IS_KERAS_2 else importlib.import_module("keras")


def load() -> ModuleType:
    """The module for the Keras of this process."""
    return importlib.import_module(f"sirtaki.keras.generations.keras{2 if IS_KERAS_2 else 3}")


def advice_for(optimizer: object) -> str:
    """Advice for an optimizer of the other Keras; empty for any other object."""
    if IS_KERAS_2 and type(optimizer).__module__.startswith("keras."):
        return "; TF_USE_LEGACY_KERAS makes Sirtaki serve Keras 2, unset it for Keras 3"
    if not IS_KERAS_2 and type(optimizer).__module__.startswith("tf_keras."):
        return "; for Keras 2 set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
    return ""
