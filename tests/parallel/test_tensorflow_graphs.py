"""What TensorFlow's graphs and threads must not do to collectives: order them, block on them, rename them."""

import threading

import numpy as np
import tensorflow as tf
from ranks import ranks

import sirtaki.tensorflow as hvd


@ranks(2, 3)
def test_each_rank_traces_in_another_order(rank_count):
    """Named ops whose order in the program differs by rank: with ops in program order this would hang."""
    order = list(range(24))
    np.random.default_rng(hvd.rank()).shuffle(order)

    @tf.function
    def step(x):
        results = {i: hvd.allreduce(x + i, op=hvd.Sum, name=f"t{i}") for i in order}
        return [results[i] for i in range(24)]

    for _ in range(20):
        results = step(tf.ones([3]))
        assert [float(t[0]) for t in results] == [rank_count * (1.0 + i) for i in range(24)]


@ranks(2)
def test_more_pending_ops_than_threads(rank_count):
    """Each op waits for an event that only the last one brings: all are in flight at once, and no thread is held."""

    @tf.function
    def step(x):
        return [hvd.allreduce(x * i, op=hvd.Sum, name=f"pending{i}") for i in range(100)]

    results = step(tf.ones([1]))
    assert [float(t[0]) for t in results] == [2.0 * i for i in range(100)]


@ranks(2)
def test_unused_result(rank_count):
    """Rank 1's program needs the result, rank 0's does not: the op runs on both."""

    @tf.function
    def step(x):
        total = hvd.allreduce(x, op=hvd.Sum, name="unused")
        return total if hvd.rank() == 1 else x

    assert float(step(tf.ones([]))) == (2.0 if hvd.rank() == 1 else 1.0)


@ranks(2)
def test_names_are_stable_over_retracing(rank_count):
    """Rank 0 traces more often than rank 1 and has traced other functions before; they meet all the same."""
    if hvd.rank() == 0:
        for _ in range(3):
            tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))

    @tf.function
    def step(x):
        y = hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)
        return tf.cond(y > 0, lambda: hvd.allreduce(y, op=hvd.Sum), lambda: y)

    for _ in range(3):
        for rows in (1, 2, 3):
            shape = [rows] if hvd.rank() == 0 else [1]
            assert float(step(tf.ones(shape))) == 2 * (rows + 1)
    assert step.experimental_get_tracing_count() == (3 if hvd.rank() == 0 else 1)


@ranks(2)
def test_names_contain_no_number_of_the_process(rank_count):
    """Rank 0 has traced more, and is in the name scope of another optimizer, than rank 1; in branches, loops and their
    gradients they meet.
    """
    if hvd.rank() == 0:
        for _ in range(3):
            tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))
    table = tf.Variable(tf.ones([6, 1]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape, tf.name_scope(f"sgd_{hvd.rank()}"):
            tape.watch(x)
            y = tf.cond(x > 0, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x)
            for _ in tf.range(2):
                y = hvd.allreduce(y, op=hvd.Sum)
        grad = tape.gradient(y, x)
        with tf.name_scope(f"sgd_{hvd.rank()}"):
            slices = tf.IndexedSlices(tf.ones([2, 1]), tf.range(2), tf.constant([6, 1]))
            total = hvd.allreduce(slices, op=hvd.Sum)
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(tf.gather(table, [1, 2]))
            rows = tape.gradient(loss, table)
        return y, grad, tf.convert_to_tensor(total), tf.convert_to_tensor(rows)

    for _ in range(2):
        y, grad, total, rows = step(tf.constant(1.0))
        assert float(y) == 8.0 and float(grad) == 8.0
        assert total.numpy().ravel().tolist() == [2.0, 2.0, 0, 0, 0, 0]
        assert rows.numpy().ravel().tolist() == [0, 1.0, 1.0, 0, 0, 0]


@ranks(2)
def test_one_more_layer_on_a_rank(rank_count):
    """Keras numbers layers through the whole process."""
    if hvd.rank() == 0:
        hvd.SyncBatchNormalization()
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    step = tf.function(lambda x: layer(x, training=True))
    x = tf.ones([2, 1]) * (4.0 * hvd.rank())
    step(x)
    assert float(layer.moving_mean[0]) == 2.0 and float(layer.moving_variance[0]) == 4.0


@ranks(2)
def test_loops_nested_functions_and_ragged_ends(rank_count):
    inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @tf.function
    def step(x, times):
        total = x
        for _ in tf.range(times):
            total = hvd.allreduce(total, op=hvd.Average) + 1.0
        return inner(inner(total))

    assert float(step(tf.constant(1.0), tf.constant(5))) == 24.0


@ranks(2)
def test_dataset_and_saved_model(rank_count, tmp_path):
    module = tf.Module()
    module.call = tf.function(
        lambda x: hvd.allreduce(x, op=hvd.Sum), input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert loaded.call(tf.ones(2)).numpy().tolist() == [2.0, 2.0]
    dataset = tf.data.Dataset.range(4).map(lambda i: hvd.allreduce(i, op=hvd.Sum, name="map"))
    assert [int(i) for i in dataset] == [0, 2, 4, 6]


@ranks(2)
def test_many_python_threads(rank_count):
    """Eager calls with names, in another order on each rank, pending at once."""
    results = {}

    def call(i):
        results[i] = float(hvd.allreduce(tf.constant(float(i)), op=hvd.Sum, name=f"thread{i}"))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads if hvd.rank() == 0 else threads[::-1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: 2.0 * i for i in range(8)}


@ranks(2)
def test_users_code_never_runs_on_the_engines_thread(rank_count):
    """What follows a collective could take long, and the engine's thread serves everything else meanwhile."""
    seen = set()

    def note(x):
        seen.add(open("/proc/thread-self/comm").read().strip())  # noqa: SIM115
        return x

    @tf.function
    def step(x):
        for i in range(4):
            x = tf.numpy_function(note, [hvd.allreduce(x, op=hvd.Average, name=f"n{i}")], tf.float32)
        return x

    for _ in range(25):
        step(tf.ones([]))
    assert seen and "sirtaki" not in seen


@ranks(2)
def test_input_memory_is_left_alone(rank_count):
    """An input that somebody else still holds is not written to, in either mode."""
    x = tf.Variable([1.0, 2.0])
    kept = tf.constant([5.0, 6.0])

    @tf.function
    def step(y):
        doubled = y * 2
        total = hvd.allreduce(doubled, op=hvd.Sum)
        return doubled, total, hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(y, op=hvd.Sum)

    for _ in range(3):
        doubled, total, variable, argument = step(kept)
        assert doubled.numpy().tolist() == [10.0, 12.0] and total.numpy().tolist() == [20.0, 24.0]
        assert variable.numpy().tolist() == [2.0, 4.0] and x.numpy().tolist() == [1.0, 2.0]
        assert argument.numpy().tolist() == [10.0, 12.0] and kept.numpy().tolist() == [5.0, 6.0]
    hvd.broadcast(kept * 1, 0)
    hvd.allreduce(kept, op=hvd.Sum)
    assert kept.numpy().tolist() == [5.0, 6.0]


@ranks(2, 3)
def test_fusion_of_mixed_sizes(rank_count):
    """C40: sizes from 0 to beyond the fusion limit, which changes on the way; integers bit-equal."""
    from sirtaki.native import core

    generator = np.random.default_rng(5)
    sizes = [int(n) for n in generator.integers(0, 3000, 20)] + [0, 1]
    dtypes = (tf.float32, tf.int64, tf.bfloat16)

    @tf.function
    def step(tensors):
        return [hvd.allreduce(t, op=hvd.Sum, name=f"s{i}") for i, t in enumerate(tensors)]

    try:
        for limit in (0, 1000, 8192):
            core.set_fusion_threshold(limit)
            for _ in range(4):
                own = [tf.cast(tf.range(n) % 7 + hvd.rank(), dtypes[i % 3]) for i, n in enumerate(sizes)]
                for i, (n, result) in enumerate(zip(sizes, step(own), strict=True)):
                    expected = rank_count * (np.arange(n) % 7) + sum(range(rank_count))
                    assert result.dtype == dtypes[i % 3]
                    np.testing.assert_array_equal(tf.cast(result, tf.int64).numpy(), expected)
    finally:
        core.set_fusion_threshold(128 << 20)
