"""Iterations that TensorFlow runs at once: one collective for all of them, or an error, but no mixed-up pairs."""

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd

ITERATIONS = 5


def of_one_iteration(x):
    """All verbs; x has 4 rows."""
    two = hvd.grouped_allreduce([x, x * 2], op=hvd.Average, name="two")
    parts = [
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
        *two,
        hvd.broadcast(x, 1),
        hvd.allgather(x[: hvd.rank() + 1]),
        hvd.reducescatter(x, op=hvd.Sum),
        hvd.alltoall(x),
        hvd.alltoall(x, splits=[1, 2])[0],
        hvd.allreduce(tf.constant([[1.0, 2.0]], tf.float64), op=hvd.Sum) + 0 * x[:1],  # the same in all iterations
    ]
    return tf.concat(parts, 0) * tf.cast(hvd.size_op(), x.dtype)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_vectorized_map(rank_count, mode):
    """Results and gradients as in a loop that runs one iteration after the other."""
    data = tf.constant(np.random.default_rng(hvd.rank()).random((ITERATIONS, 4, 2)))

    def run(over):
        with tf.GradientTape() as tape:
            tape.watch(data)
            results = over(of_one_iteration, data)
            loss = tf.reduce_sum(results**2)
        return results, tape.gradient(loss, data)

    wanted = tf.function(lambda: run(tf.map_fn))()
    found = in_mode(mode, lambda: run(tf.vectorized_map))()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_jacobian(rank_count, mode):
    x = tf.constant([1.0, 2.0, 3.0]) * (hvd.rank() + 1.0)

    def jacobian():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.concat([hvd.allreduce(x**2, op=hvd.Sum), hvd.broadcast(x, 0)], 0)
        return tape.jacobian(y, x)

    diagonal = np.diag(x)
    expected = np.concatenate([4 * diagonal, np.eye(3) if hvd.rank() == 0 else np.zeros((3, 3))])
    np.testing.assert_allclose(in_mode(mode, jacobian)(), expected)


@ranks(2)
def test_verbs_that_cannot_be_vectorized(rank_count):
    x = tf.ones([3, 2])
    for call in (
        lambda row: hvd.allreduce(row, op=hvd.Adasum),
        lambda row: hvd.alltoall(row, splits=tf.cast(row, tf.int32))[0],
        lambda row: row * tf.cast(hvd.join(), tf.float32),
    ):
        with pytest.raises(NotImplementedError, match=r"vectorized loop; use tf\.map_fn"):
            tf.vectorized_map(call, x)
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape differs"):  # unequal numbers of iterations
        tf.vectorized_map(hvd.allreduce, x[: 2 + hvd.rank()])
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == 2.0


@ranks(2)
def test_parallel_map_over_a_dataset(rank_count):
    """Two elements at once under one name on rank 0: it says so, and what is in flight ends with the other rank's."""

    def elements(count, **arguments):
        return iter(
            tf.data.Dataset.range(count).map(lambda i: hvd.allreduce(i + 1, op=hvd.Sum, name="map"), **arguments)
        )

    if hvd.rank() == 0:
        iterator = elements(2, num_parallel_calls=2, deterministic=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match="a parallel map over a dataset"):
            next(iterator)  # the other element waits for rank 1
        hvd.barrier()
    else:
        hvd.barrier()
        next(elements(1))
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == 2.0
