"""C29: drift of one rank's variables is found on every rank, and the variable named."""

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd

FAILURES = {"eager": hvd.HorovodInternalError, "function": tf.errors.UnknownError}


def optimizer(passes: int = 1):
    inner = tf.compat.v1.train.MomentumOptimizer(0.5, 0.9)
    return hvd.DistributedOptimizer(inner, backward_passes_per_step=passes)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_optimizer_finds_drift(rank_count, mode, monkeypatch):
    """Every second of its steps, each of which takes two passes; a local variable may differ."""
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "2")
    good, bad, own = (tf.Variable(np.ones(3), name=name) for name in ("good", "bad", "own"))
    optimizing = optimizer(passes=2)
    optimizing.register_local_var(own)
    step = in_mode(
        mode, lambda x: optimizing.minimize(lambda: tf.reduce_sum((good + bad + own) * x), var_list=[good, bad, own])
    )
    passes = [tf.constant(float(number + hvd.rank()), tf.float64) for number in range(8)]
    for x in passes:
        step(x)
    if hvd.rank() == 1:
        bad.assign_add([0.0, 1e-9, 0.0])
    for x in passes[:3]:
        step(x)
    with pytest.raises(FAILURES[mode], match=r"after step 6 the parameter bad:0 of shape \(3,\) .* \[\d+, \d+\]"):
        step(passes[3])
    for variable in (good, bad, own):
        hvd.broadcast_variables([variable], 0)
    for x in passes[:4]:
        step(x)  # nothing is left of the error


@ranks(2)
def test_optimizer_in_a_session(rank_count, monkeypatch):
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "3")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, y, z = (tf.compat.v1.get_variable(name, initializer=[0.0, 0.0]) for name in "xyz")
        train = optimizer().minimize(tf.reduce_sum(x + y * z + z) * (hvd.rank() + 1.0), var_list=[x, y, z])
        drift = [v.assign_add([0.0, 1e-3 * hvd.rank()]) for v in (y, z)]
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(4):
            session.run(train)
        session.run(drift)
        session.run(train)
        with pytest.raises(tf.errors.UnknownError, match=r"after step 6 the parameter y:0 .* nor are 1 more of 3"):
            session.run(train)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_as_the_program_asks(rank_count, mode):
    """For those who update by themselves; all dtypes, Keras variables too."""
    dense = tf.keras.layers.Dense(2)
    dense.build((None, 3))
    others = [tf.Variable(tf.cast([1, 2], dtype)) for dtype in (tf.bfloat16, tf.bool, tf.int8)] + [tf.Variable(3.0)]
    hvd.broadcast_variables([*others, *dense.weights], 0)
    check = in_mode(mode, lambda: hvd.check_parameters([*others, *dense.weights]))
    check()
    dense.bias.assign([float(hvd.rank()), 0.0])
    with pytest.raises(FAILURES[mode], match=r"the parameter dense.*/bias of shape"):
        check()
    with pytest.raises(ValueError, match=r"variables\[0\] must be a variable, got int 5"):
        hvd.check_parameters([5])
