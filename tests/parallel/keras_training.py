"""A small convolutional net in Keras, its data, and the serial run that a distributed one must equal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from joined_batches import SAMPLES, data, own
from joined_batches import STEPS as STEPS
from joined_batches import check_equal as check_equal
from joined_batches import check_same_on_ranks as check_same_on_ranks

import sirtaki.keras as hvd

keras.config.set_floatx("float64")


def make_model(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return Net(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="tanh"),
            keras.layers.Conv2D(4, 3),
            keras.layers.Conv2D(5, 4),  # not Dense: Keras multiplies matrices in 32 bits on torch
            keras.layers.Flatten(),
        ]
    )


def sgd(**options: Any) -> keras.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def fit(model: keras.Model, x: np.ndarray, y: np.ndarray, batch: int, **options: Any) -> list[float]:
    return model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, **options).history["loss"]


def mean_square(y: Any, predicted: Any) -> Any:
    squares = keras.ops.square(predicted - keras.ops.convert_to_tensor(y))
    return keras.ops.sum(squares) / keras.ops.cast(keras.ops.size(squares), "float64")  # means have 32 bits on torch


class Net(keras.Sequential):
    """With a loss in 64 bits: Keras divides its own in 32 bits on torch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return mean_square(y, y_pred)


def compiled(model: keras.Model, optimizer: keras.Optimizer, **options: Any) -> keras.Model:
    model.compile(optimizer, **options)
    return model


@functools.cache
def serial(make: Callable[[], keras.Optimizer] = sgd) -> keras.Model:
    """The model after the same steps by one process on the joined batches."""
    model = compiled(make_model(), make())
    x, y = data()
    fit(model, x, y, SAMPLES)
    return model


def plain_sgd() -> keras.Optimizer:
    return keras.optimizers.SGD(0.1)


def trained(optimizer: keras.Optimizer, **options: Any) -> keras.Model:
    """The model after the same steps by all ranks, each on its part, with fit()."""
    model = compiled(make_model(), optimizer, **options)
    x, y = data()
    fit(model, own(x), own(y), SAMPLES // hvd.size())
    return model


def loss_and_gradients(model: keras.Model, x: np.ndarray, y: np.ndarray) -> list[Any]:
    """The gradients of the mean squared error, by the backend's own means."""
    if keras.backend.backend() == "torch":
        model.zero_grad()
        mean_square(y, model(x)).backward()
        return [variable.value.grad for variable in model.trainable_variables]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = mean_square(y, model(x))
    return tape.gradient(loss, [variable.value for variable in model.trainable_variables])
