"""A small convolutional net in Keras 2, its data, and the serial run that a distributed one must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

import sirtaki.tensorflow.keras as hvd
from sirtaki.exchange import allgather_object

SAMPLES = 12  # of one step on all ranks
STEPS = 5

keras.backend.set_floatx("float64")


def make_model(seed: int = 1, cls: type = keras.Sequential) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ]
    return cls(layers)


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """The joined batches of all steps, one after another."""
    random = np.random.default_rng(0)
    return random.standard_normal((steps * SAMPLES, 6, 6, 1)), random.standard_normal((steps * SAMPLES, 5))


def own(array: np.ndarray) -> np.ndarray:
    """This rank's part of each joined batch."""
    size = SAMPLES // hvd.size()
    return array.reshape(-1, hvd.size(), size, *array.shape[1:])[:, hvd.rank()].reshape(-1, *array.shape[1:])


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


def check_equal(model: keras.Model, expected: keras.Model, tolerance: float = 1e-10) -> None:
    """Within the tolerance, and bit-equal on all ranks."""
    for variable, one, other in zip(model.weights, model.get_weights(), expected.get_weights(), strict=True):
        worst = np.abs(one - other).max()
        assert worst < tolerance, (variable.name, worst)
    bits = [weight.tobytes() for weight in model.get_weights()]
    assert all(other == bits for other in allgather_object(bits))


def gradients(model: keras.Model, x: np.ndarray, y: np.ndarray) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return tape.gradient(loss, model.trainable_variables)
