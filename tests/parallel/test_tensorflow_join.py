"""C12, C20: finite datasets of unequal length."""

import re

import numpy as np
import pytest
import tensorflow as tf
from jobs import run_script
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd

BATCHES = (10, 11)  # of rank 0 and rank 1


@ranks(2, 3)
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


@ranks(2, 3)
def test_join_keeps_its_place_among_loops(rank_count):
    """In one function: a loop over uneven data, join, and a loop that needs all ranks again. All use variables."""
    weight, total = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def epoch(dataset):
        for x in dataset:
            with tf.GradientTape() as tape:
                loss = weight * x
            weight.assign_add(hvd.DistributedGradientTape(tape).gradient(loss, weight))
        last = hvd.join()
        weight_then = weight.read_value()
        for _ in tf.range(2):
            total.assign_add(hvd.allreduce(1.0, op=hvd.Sum))
        hvd.barrier()
        weight.assign(-1.0)
        return last, weight_then, hvd.allreduce(weight_then, op=hvd.Max)

    batches = [2.0] * (2 + hvd.rank())
    last, own, largest = epoch(tf.data.Dataset.from_tensor_slices(batches))
    assert (int(last), float(own), float(largest)) == (rank_count - 1, sum(batches), 2.0 * (rank_count + 1))
    assert (float(total), float(weight)) == (2.0 * rank_count, -1.0)


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_other_verbs_while_a_rank_has_joined(rank_count, mode):
    """C13: a joined rank contributes no rows, and does not count in an average."""
    if hvd.rank() == 0:
        assert in_mode(mode, lambda: hvd.broadcast(tf.ones(2), 0, name="from 0"))().numpy().tolist() == [1.0, 1.0]
    else:
        in_mode(mode, lambda: hvd.broadcast(tf.zeros(2), 0, name="from 0"))()
        here = [float(rank) for rank in range(1, rank_count)]
        rows = tf.fill([1, 2], float(hvd.rank()))
        assert in_mode(mode, lambda: hvd.allgather(rows))().numpy()[:, 0].tolist() == here
        assert in_mode(mode, lambda: hvd.broadcast(rows, 1))().numpy().tolist() == [[1.0, 1.0]]
        slices = tf.IndexedSlices(rows, tf.constant([2]), tf.constant([4, 2]))
        average = in_mode(mode, lambda: tf.convert_to_tensor(hvd.allreduce(slices)))().numpy()[2].tolist()
        assert average == [sum(here) / len(here)] * 2
        for call in (
            lambda: hvd.reducescatter(tf.ones(4), name="too late"),
            lambda: hvd.broadcast(tf.ones(2), 0, name="too late"),
            lambda: hvd.alltoall(tf.ones(rank_count), name="too late"),
        ):
            with pytest.raises(tf.errors.FailedPreconditionError, match="join"):
                in_mode(mode, call)()
    hvd.join()
    assert in_mode(mode, lambda: hvd.allgather(tf.ones(2)))().numpy().tolist() == [1.0] * (2 * rank_count)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_and_uneven_batches(rank_count, mode):
    """C12: with join both ranks end; the last batch is normalised and averaged over the rank that has it."""
    layer = hvd.SyncBatchNormalization(momentum=0.0, dtype="float64")
    layer.build((None, 2))
    output = tf.Variable(tf.ones([2], tf.float64))
    data = np.random.default_rng(hvd.rank()).random((11, 3, 2))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x, training=True) * output * x)
        sources = [output, *layer.trainable_weights]
        for variable, grad in zip(sources, hvd.DistributedGradientTape(tape).gradient(loss, sources), strict=True):
            variable.assign_sub(0.1 * grad)

    step = in_mode(mode, step)
    for number in range(BATCHES[hvd.rank()]):
        step(tf.constant(data[number]))
    last = int(hvd.join())
    assert last == 1
    hvd.broadcast_variables([output, *layer.weights], last)
    of_last = np.random.default_rng(1).random((11, 3, 2))[10]
    np.testing.assert_allclose(layer.moving_mean, of_last.mean(0))
    np.testing.assert_allclose(layer.moving_variance, of_last.var(0))


@pytest.mark.long
def test_uneven_batches_without_join():
    """C12: the rank that goes on learns within the stall limit which one has finished; that one is alive, saving."""
    ended = run_script(
        2,
        f"""
        import time, tensorflow as tf, sirtaki.tensorflow as hvd
        hvd.init()
        layer, weight = hvd.SyncBatchNormalization(), tf.Variable([1.0, 1.0])

        @tf.function
        def step(x):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean(layer(x, training=True) * weight * x)
            weight.assign_sub(tape.gradient(loss, weight))

        for number in range({BATCHES}[hvd.rank()]):
            step(tf.random.normal([3, 2]))
        print("rank", hvd.rank(), "has finished")
        time.sleep(60)
        """,
        extra={"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "2"},
    )
    assert ended.code not in (0, None), ended.output
    assert "rank 0 has finished" in ended.output and "rank 1 has finished" not in ended.output
    assert "UnknownError" in ended.output and "Stalled" in ended.output, ended.output
    assert re.search(r"rank 1 .* waits for 'allreduce\.step/allreduce.*missing: rank 0", ended.output), ended.output
