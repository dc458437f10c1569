"""C25: gradients of collectives equal finite differences of the mean loss over ranks, up to each verb's known factor.

sirtaki.tensorflow.gradients says which: with P ranks, a tape gives P times the gradient of the mean loss for allreduce
and alltoall, the gradient itself for allgather and broadcast, and P * P times for reducescatter.
"""

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd

ROWS = 6  # divisible by 2 and 3
STEP = 1e-4


def loss_of(output: tf.Tensor) -> tf.Tensor:
    """Weighted so that the ranks' losses differ."""
    weights = tf.random.stateless_uniform(tf.shape(output), [77, hvd.rank()], dtype=tf.float64)
    return tf.reduce_sum(weights * tf.square(output))


def uneven(x: tf.Tensor) -> tf.Tensor:
    return x[: hvd.rank() + 2]


CALLS = {
    "allreduce average": (lambda x: hvd.allreduce(x, op=hvd.Average, name="g"), 1),
    "allreduce sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), 1),
    "allreduce scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), 1),
    "grouped allreduce average": (lambda x: tf.concat(hvd.grouped_allreduce([x[:2], x[2:] * 2], name="g"), 0), 1),
    "grouped allreduce sum": (lambda x: tf.concat(hvd.grouped_allreduce([x[:1], x[1:]], op=hvd.Sum), 0), 1),
    "alltoall": (lambda x: hvd.alltoall(x, name="g"), 1),
    "alltoall with splits": (lambda x: hvd.alltoall(x, [1] * hvd.size())[0], 1),
    "allgather": (lambda x: hvd.allgather(x, name="g"), 0),
    "allgather uneven": (lambda x: hvd.allgather(uneven(x)), 0),
    "grouped allgather": (lambda x: tf.concat(hvd.grouped_allgather([uneven(x), x * 3]), 0), 0),
    "broadcast": (lambda x: hvd.broadcast(x, 1, name="g"), 0),
    "reducescatter average": (lambda x: hvd.reducescatter(x, op=hvd.Average, name="g"), 2),
    "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), 2),
    "reducescatter scaled": (lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0), 2),
    "grouped reducescatter average": (lambda x: tf.concat(hvd.grouped_reducescatter([x, x[:5]]), 0), 2),
    "grouped reducescatter sum": (lambda x: tf.concat(hvd.grouped_reducescatter([x, x * 2], op=hvd.Sum), 0), 2),
}


def finite_differences(mean_loss, x: np.ndarray) -> np.ndarray:
    """d(mean loss)/d(this rank's x); every rank takes part in the differences of every other."""
    result = np.zeros_like(x)
    for rank in range(hvd.size()):
        for index in range(x.size):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                if rank == hvd.rank():
                    moved.flat[index] += sign * STEP
                ends.append(float(mean_loss(tf.constant(moved))))
            if rank == hvd.rank():
                result.flat[index] = (ends[0] - ends[1]) / (2 * STEP)
    return result


@ranks(2, 3)
@pytest.mark.parametrize("kind", CALLS)
def test_against_finite_differences(rank_count, kind):
    """Eager, and traced with the tape inside of the function; both against the same differences."""
    call, power = CALLS[kind]
    x = np.random.default_rng(hvd.rank()).random((ROWS, 2))

    def gradient(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = loss_of(call(value))
        return tape.gradient(loss, value)

    mean_loss = tf.function(lambda value: hvd.allreduce(loss_of(call(value)), op=hvd.Average))
    expected = finite_differences(mean_loss, x) * float(rank_count) ** power
    for mode in MODES:
        found = in_mode(mode, gradient)(tf.constant(x))
        np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-6, atol=1e-8, err_msg=mode)


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_output_gradient_of_another_float_type(rank_count, mode):
    """Float32 ones for a float64 result, for every collective: they are reduced as float32."""
    calls = {
        "allreduce": (lambda x: hvd.allreduce(x), [1.0] * rank_count),
        "allgather": (lambda x: hvd.allgather(x), [1.0] * rank_count),
        "broadcast": (lambda x: hvd.broadcast(x, 0), [float(hvd.rank() == 0)] * rank_count),
        "reducescatter": (lambda x: hvd.reducescatter(x), [1.0] * rank_count),
        "alltoall": (lambda x: hvd.alltoall(x), [1.0] * rank_count),
        "splits": (lambda x: hvd.alltoall(x, [1] * rank_count)[0], [1.0] * rank_count),
        "unsent": (lambda x: hvd.alltoall(x, [1] + [0] * (rank_count - 1))[0], [1.0] + [0.0] * (rank_count - 1)),
    }
    for what, (call, expected) in calls.items():

        def gradient(call=call):
            x = tf.ones([rank_count], tf.float64)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
            return tape.gradient(y, x, tf.ones(tf.shape(y), tf.float32))

        got = in_mode(mode, gradient)()
        assert got.dtype == tf.float32 and got.numpy().tolist() == expected, (what, got)


@ranks(2)
def test_tape_around_a_function(rank_count):
    """TensorFlow then makes a function of its own for the backward pass."""
    x = tf.constant([1.0, 2.0])
    forward = tf.function(lambda value: tf.reduce_sum(hvd.allreduce(value, op=hvd.Sum) ** 2))
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = forward(x)
        assert tape.gradient(y, x).numpy().tolist() == [8.0, 16.0]


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_second_derivative_and_two_losses(rank_count, mode):
    def derivatives(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                y = hvd.allreduce(x**3, op=hvd.Average, name="cubic")
                one, two = tf.reduce_sum(y), tf.reduce_sum(2 * y)
            first, twice = inner.gradient(one, x), inner.gradient(two, x)
        return first, twice, outer.gradient(first, x)

    first, twice, second = in_mode(mode, derivatives)(tf.fill([2], tf.constant(3.0, tf.float64)))
    assert first.numpy().tolist() == [27.0, 27.0]
    assert twice.numpy().tolist() == [54.0, 54.0]
    assert second.numpy().tolist() == [18.0, 18.0]


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_integers_in_a_group_have_no_gradient(rank_count, mode):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, n = hvd.grouped_allreduce([x, tf.constant([1, 2])], op=hvd.Sum)
            loss = tf.reduce_sum(y) * tf.cast(n[0], tf.float32)
        return tape.gradient(loss, x)

    assert in_mode(mode, gradient)(tf.ones(2)).numpy().tolist() == [4.0, 4.0]
