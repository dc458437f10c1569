"""C29: drift of one rank's variables is found on every rank, and the variable named."""

import keras
import keras_training as training
import pytest
from ranks import ranks

import sirtaki.keras as hvd


@ranks(2)
@pytest.mark.parametrize("way", ["fit", "eagerly", "scaled"])
def test_fit_finds_drift(way: str, monkeypatch, keras_backend: str) -> None:
    """Every second batch; a local variable may differ."""
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "2")
    plain = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2 if way == "eagerly" else None)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(plain) if way == "scaled" else plain)
    model = training.compiled(training.make_model(), optimizer, run_eagerly=way == "eagerly")
    optimizer.register_local_var(model.trainable_variables[0])
    x, y = map(training.own, training.data(4))
    size = training.SAMPLES // hvd.size()
    training.fit(model, x, y, size)
    drifting = model.trainable_variables[3]
    if hvd.rank() == 1:
        drifting.assign(drifting + 1e-9)
    error = hvd.HorovodInternalError
    if keras_backend == "tensorflow" and way != "eagerly":
        import tensorflow as tf

        error = tf.errors.UnknownError
    with pytest.raises(error, match=rf"after step 6 the parameter {drifting.path} of shape .* \[\d+, \d+\]"):
        training.fit(model, x, y, size)
    hvd.broadcast_variables(model.weights, 0)
    training.fit(model, x, y, size)  # nothing is left of the error


@ranks(2)
def test_a_setting_that_is_not_a_number_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "often")
    with pytest.raises(ValueError, match="must be a number of steps, got 'often'"):
        hvd.DistributedOptimizer(keras.optimizers.SGD())
