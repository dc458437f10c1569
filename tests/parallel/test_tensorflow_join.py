"""C12, C20: finite datasets of unequal length."""

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd


@ranks(1, 2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_uneven_datasets(rank_count, mode):
    """Rank r has 4 + r batches; all end, and those who go on average among themselves."""
    weight = tf.Variable([0.0])
    dataset = tf.data.Dataset.from_tensor_slices(np.ones((4 + hvd.rank(), 1), np.float32))

    @tf.function
    def graph_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x * (hvd.rank() + 1.0))
        (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        weight.assign_sub(grad)

    def eager_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x * (hvd.rank() + 1.0))
        (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        weight.assign_sub(grad)

    step = graph_step if mode == "function" else eager_step
    for x in dataset:
        step(x)
    last = in_mode(mode, hvd.join)()
    assert last.dtype == tf.int32 and int(last) == rank_count - 1
    hvd.broadcast_variables([weight], int(last))
    expected = 0.0
    for number in range(4 + rank_count - 1):
        active = [rank + 1.0 for rank in range(rank_count) if number < 4 + rank]
        expected -= sum(active) / len(active)
    np.testing.assert_allclose(weight.numpy(), [expected], rtol=1e-6)
    # The ranks have made unequal numbers of calls without a name, and still meet.
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == rank_count


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_other_verbs_while_a_rank_has_joined(rank_count, mode):
    if hvd.rank() == 0:
        for call in (
            lambda: hvd.allgather(tf.ones(2), name="too late"),
            lambda: hvd.broadcast(tf.ones(2), 0, name="too late"),
        ):
            with pytest.raises(tf.errors.FailedPreconditionError, match="join"):
                in_mode(mode, call)()
    hvd.join()
    assert in_mode(mode, lambda: hvd.allgather(tf.ones(2)))().numpy().tolist() == [1.0] * 4
