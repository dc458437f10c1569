"""C27: IndexedSlices: duplicates merged first, sent as a table once that is less, equal to the dense result."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd
from sirtaki.native import core
from sirtaki.tensorflow.collectives import sparse


def dense(slices: tf.IndexedSlices) -> list:
    return tf.convert_to_tensor(slices).numpy().tolist()


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_sum_and_average(rank_count, mode):
    """Row 0 twice on every rank; row `rank` once."""

    def call(op):
        values = tf.constant([[1.0, 2.0], [1.0, 2.0], [5.0, 6.0]])
        slices = tf.IndexedSlices(values, tf.constant([0, 0, hvd.rank()], tf.int64), tf.constant([20, 2], tf.int64))
        return hvd.allreduce(slices, op=op)

    expected = np.zeros((20, 2))
    for rank in range(rank_count):
        expected[0] += [2.0, 4.0]
        expected[rank] += [5.0, 6.0]
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, rank_count)):
        result = in_mode(mode, lambda op=op: call(op))()
        assert isinstance(result, tf.IndexedSlices)
        assert sorted(result.indices.numpy().tolist()) == list(range(rank_count))
        np.testing.assert_allclose(dense(result), expected / divisor)


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_average_at_the_ends(rank_count, mode):
    """By rows: integers are exact, finite numbers stay finite."""

    def rows(dtype):
        return np.array([[dtype.max], [dtype.min], [3]], dtype.as_numpy_dtype)

    def call(dtype):
        slices = tf.IndexedSlices(
            tf.constant(rows(dtype)), tf.constant([1, 5, 7], tf.int64), tf.constant([200, 1], tf.int64)
        )
        return hvd.allreduce(slices, op=hvd.Average).values

    for dtype in (tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64):
        result = in_mode(mode, lambda dtype=dtype: call(dtype))()
        assert result.dtype == dtype
        assert result.numpy().tolist() == rows(dtype).tolist(), dtype


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_narrow_floats_are_added_up_in_float32(rank_count, mode):
    """60000 + 60000 is beyond float16; 256 + 1 + 1 needs more digits than bfloat16 has on the way."""

    def call():
        shape = tf.constant([20, 1])
        large = tf.IndexedSlices(tf.constant([[60000.0]], tf.float16), tf.constant([1]), shape)
        many = tf.IndexedSlices(tf.constant([[256.0], [1.0], [1.0]], tf.bfloat16), tf.constant([2, 2, 2]), shape)
        return hvd.allreduce(large, op=hvd.Average), hvd.allreduce(many, op=hvd.Average)

    large, many = in_mode(mode, call)()
    assert large.values.dtype == tf.float16 and large.values.numpy().tolist() == [[60000.0]]
    assert many.values.dtype == tf.bfloat16 and float(many.values[0, 0]) == 258.0


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", (4, 20))
def test_factors(rank_count, mode, rows):
    """As rows and as a table; the predivision of a tape changes nothing but the order of operations."""
    table = tf.Variable(tf.ones([rows, 1]))

    def call():
        slices = tf.IndexedSlices(tf.ones([3, 1]), tf.range(3), tf.constant([rows, 1]))
        scaled = hvd.allreduce(slices, op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 1, 2])) * (hvd.rank() + 1.0)
        tape = hvd.DistributedGradientTape(tape, gradient_predivide_factor=4.0)
        return tf.convert_to_tensor(scaled), tf.convert_to_tensor(tape.gradient(loss, table))

    scaled, grad = in_mode(mode, call)()
    assert scaled.numpy().ravel().tolist() == [3.0] * 3 + [0.0] * (rows - 3)
    assert grad.numpy().ravel().tolist() == [1.5] * 3 + [0.0] * (rows - 3)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_no_rows_on_one_rank_and_mixed_lists(rank_count, mode):
    def call():
        rows = 2 * hvd.rank()
        slices = tf.IndexedSlices(tf.ones([rows, 3]), tf.range(rows), tf.constant([8, 3]))
        return hvd.grouped_allreduce([tf.ones(2), slices, tf.ones([])], op=hvd.Sum, compression=hvd.Compression.fp16)

    first, slices, last = in_mode(mode, call)()
    assert first.numpy().tolist() == [2.0, 2.0] and float(last) == 2.0
    assert dense(slices) == [[1.0] * 3] * 2 + [[0.0] * 3] * 6


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_one_line_when_it_becomes_dense(rank_count, mode, caplog):
    """Each rank holds 3 different rows of 5."""
    name = f"table {mode}"

    def call():
        indices = tf.constant([0, 1, 2 + hvd.rank()])
        slices = tf.IndexedSlices(tf.ones([3, 2]) * (hvd.rank() + 1), indices, tf.constant([5, 2]))
        return hvd.allreduce(slices, op=hvd.Sum, name=name)

    call = in_mode(mode, call)
    with caplog.at_level(logging.WARNING, logger="sirtaki.tensorflow"):
        for _ in range(3):
            result = call()
    assert dense(result) == [[3.0, 3.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
    assert sorted(result.indices.numpy().tolist()) == [0, 1, 2, 3]
    assert len([r for r in caplog.records if "dense" in r.getMessage()]) == 1


@ranks(2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_tied_embedding(rank_count, mode, caplog, monkeypatch):
    """30,000 x 64. As an embedding alone it travels as its few rows; tied to the output layer it has all rows on each
    rank and travels as a table (in eager mode TensorFlow makes it dense itself). Both equal the dense mean.
    """
    monkeypatch.setattr(sparse, "_announced", set())
    table = tf.Variable(tf.random.stateless_normal([30000, 64], [1, 2]))

    def loss(rank, tied):
        picked = tf.random.stateless_uniform([20], [rank, 5], maxval=7, dtype=tf.int32) + 1000 * rank
        hidden = tf.gather(table, picked)
        return tf.reduce_mean(tf.square(tf.matmul(hidden, table, transpose_b=True) if tied else hidden))

    def gradient(tied, as_dense=False):
        with tf.GradientTape() as tape:
            value = loss(hvd.rank(), tied)
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(value, table)

    for tied in (False, True):
        with tf.GradientTape() as tape:
            total = tf.add_n([loss(rank, tied) for rank in range(rank_count)]) / rank_count
        expected = tf.convert_to_tensor(tape.gradient(total, table))
        call = in_mode(mode, lambda tied=tied: gradient(tied))
        with caplog.at_level(logging.WARNING, logger="sirtaki.tensorflow"):
            for _ in range(2):
                before = core.statistics()["bytes"]
                found = call()
                sent = core.statistics()["bytes"] - before
        assert isinstance(found, tf.IndexedSlices) == (mode == "function" or not tied)
        np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-4, atol=1e-7)
        lines = [r.getMessage() for r in caplog.records if "dense tensor" in r.getMessage()]
        if tied and mode == "function":
            assert len(lines) == 1 and f"{rank_count * 30000} rows, more than the table's 30000" in lines[0], lines
        else:
            assert not lines and (tied or sent <= 7 * (8 + 64 * 4) + 100), (lines, sent)
    as_dense = in_mode(mode, lambda: gradient(True, as_dense=True))()
    np.testing.assert_allclose(as_dense, expected, rtol=1e-4, atol=1e-7)
