"""A small convolutional net in Keras 2, its data, and the serial run that a distributed one must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from joined_batches import SAMPLES, data, own
from joined_batches import STEPS as STEPS
from joined_batches import check_equal as check_equal

import sirtaki.tensorflow.keras as hvd

keras.backend.set_floatx("float64")


def make_model(seed: int = 1, cls: type = keras.Sequential) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ]
    return cls(layers)


def fit(model: keras.Model, x: np.ndarray, y: np.ndarray, batch: int, **options: Any) -> dict[str, list[float]]:
    return model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, **options).history


def compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    model.compile(optimizer, loss="mse", **options)
    return model


def serial(make: Callable[[], Any], **options: Any) -> keras.Model:
    """The model after the same steps by one process on the joined batches."""
    model = compiled(make_model(), make(), **options)
    fit(model, *data(), SAMPLES)
    return model


def trained(optimizer: Any, cls: type = keras.Sequential, passes: int = 1, **options: Any) -> keras.Model:
    """The model after the same steps by all ranks, each on its part, with fit()."""
    model = compiled(make_model(cls=cls), optimizer, **options)
    fit(model, *map(own, data()), SAMPLES // hvd.size() // passes)
    return model


def gradients(model: keras.Model, x: np.ndarray, y: np.ndarray) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return tape.gradient(loss, model.trainable_variables)
