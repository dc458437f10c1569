"""Uneven batches, gradients of uneven sizes, several optimizers in one, 16-bit models, a backend that is not served."""

import importlib

import keras
import keras_training as training
import numpy as np
import pytest
from jobs import run_script
from ranks import ranks

import sirtaki.keras as hvd
from sirtaki.native import core


def several(wrap=lambda optimizer: optimizer) -> keras.Optimizer:
    first, rest = wrap(training.sgd(clipnorm=0.05)), wrap(keras.optimizers.Adam(0.01))
    return keras.optimizers.MultiOptimizer(lambda variable: first if variable.ndim == 4 else rest)


@ranks(2)
@pytest.mark.parametrize("inside", [False, True])
def test_several_optimizers_in_one(inside: bool, keras_backend: str) -> None:
    """inside: the inner ones are distributed too, and leave the reduction to the outer one."""
    wrap = hvd.DistributedOptimizer
    if keras_backend == "tensorflow":
        import sirtaki.tensorflow

        wrap = sirtaki.tensorflow.DistributedOptimizer
    optimizer = wrap(several(wrap) if inside else several())
    training.check_equal(training.trained(optimizer), training.serial(several))


@ranks(2)
def test_whole_training_in_mixed_precision(keras_backend: str) -> None:
    """compile() adds the loss scale, whose first value makes the first steps overflow on some rank."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, expected = mixed(), mixed()
        x, y = training.data()
        model.compile(hvd.DistributedOptimizer(training.plain_sgd()), loss="mse")
        expected.compile(training.plain_sgd(), loss="mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        training.fit(model, training.own(x), training.own(y), training.SAMPLES // hvd.size())
        training.fit(expected, x, y, training.SAMPLES)
    finally:
        keras.config.set_dtype_policy("float64")
    training.check_equal(model, expected, tolerance=0.02)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == training.STEPS


@ranks(2)
def test_a_layer_that_not_all_ranks_have(keras_backend: str) -> None:
    layers = [keras.layers.Dense(2, name=name) for name in ("one", "two")[: 1 + hvd.rank()]]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(hvd.DistributedOptimizer(training.plain_sgd()), loss="mse")
    with pytest.raises(Exception, match=r"only rank 1 has .*\btwo/kernel, .*\btwo/bias\. "):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


def mixed() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(5)])


@ranks(2)
def test_other_backends_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(NotImplementedError, match="on the backends tensorflow and torch, but Keras runs on 'jax' here"):
        importlib.reload(hvd)


@ranks(2, 3, backends=["tensorflow"])
def test_fusion_of_mixed_sizes() -> None:
    """C40: sizes from 0 to beyond the fusion limit, which changes on the way; the gradients are whole numbers."""
    import tensorflow as tf

    sizes = [int(n) for n in np.random.default_rng(5).integers(0, 3000, 12)] + [0, 1]
    dtypes = [("float32", "float64", "bfloat16")[i % 3] for i in range(len(sizes))]
    variables = [keras.Variable(np.zeros(n), dtype=dtype) for n, dtype in zip(sizes, dtypes, strict=True)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)

    @tf.function
    def step(factor):
        grads = [tf.cast((tf.range(n) % 7 + 2 * hvd.rank()) * factor, d) for n, d in zip(sizes, dtypes, strict=True)]
        optimizer.apply(grads, variables)

    total = 0
    try:
        for limit in (0, 1000, 8192):
            core.set_fusion_threshold(limit)
            for factor in (1, 2, -4):
                step(tf.constant(factor))
                total += factor
                for n, variable in zip(sizes, variables, strict=True):
                    expected = -total * (np.arange(n) % 7 + hvd.size() - 1)
                    np.testing.assert_array_equal(tf.cast(variable.value, tf.int32), expected)
    finally:
        core.set_fusion_threshold(128 << 20)


def normalised() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((8, 8, 1)), keras.layers.BatchNormalization(), keras.layers.Conv2D(5, 8)]
    return training.Net([*layers, keras.layers.Flatten()])


@ranks(2)
@pytest.mark.parametrize("eagerly", [False, True])
def test_batch_norm_and_uneven_batches(eagerly: bool, keras_backend: str) -> None:
    """C12: with join both ranks end; the batch that rank 1 has alone is averaged over that rank."""
    expected = training.compiled(normalised(), training.sgd(), run_eagerly=eagerly)
    model = training.compiled(normalised(), hvd.DistributedOptimizer(training.sgd()), run_eagerly=eagerly)
    x, y = training.data()
    for number in range(3):  # the ranks have the same batches, so that their mean is what one process has
        part = slice(4 * number, 4 * number + 4)
        expected.train_on_batch(x[part], y[part])
        if number < 2 + hvd.rank():
            model.train_on_batch(x[part], y[part])
    last = int(importlib.import_module(f"sirtaki.{keras_backend}").join())
    assert last == 1
    hvd.broadcast_variables([*model.weights, *model.optimizer.variables], last)
    training.check_equal(model, expected)
    model.train_on_batch(x[:4], y[:4])
    expected.train_on_batch(x[:4], y[:4])
    training.check_equal(model, expected)


@pytest.mark.long
def test_uneven_batches_without_join() -> None:
    """C12: the rank that goes on learns within the stall limit which one has finished; that one is alive, saving."""
    ended = run_script(
        2,
        """
        import time, keras, numpy as np, sirtaki.keras as hvd
        hvd.init()
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), loss="mse")
        count = 2 + hvd.rank()
        model.fit(np.ones((count, 3)), np.ones((count, 2)), batch_size=1, verbose=0)
        print("rank", hvd.rank(), "has finished")
        time.sleep(60)
        """,
        extra={
            "KERAS_BACKEND": "torch",
            "SIRTAKI_STALL_CHECK_TIME_SECONDS": "1",
            "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "2",
        },
    )
    assert ended.code not in (0, None), ended.output
    assert "rank 0 has finished" in ended.output and "rank 1 has finished" not in ended.output
    assert "Stalled" in ended.output and "missing: rank 0" in ended.output, ended.output
