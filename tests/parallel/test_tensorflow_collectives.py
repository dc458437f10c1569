"""Every collective, eager and in tf.function, against what every rank can compute."""

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import FLOATS, INTEGERS, MODES, check, in_mode, reduced, values, wide

import sirtaki.tensorflow as hvd

SHAPES = ((), (1,), (7,), (0,), (3, 0), (5, 4), (2, 3, 4))


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=lambda dtype: dtype.name)
def test_allreduce(rank_count, mode, dtype):
    """All shapes and ops as one unit."""
    ops = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
    own = [values(hvd.rank(), shape, dtype, seed) for seed, shape in enumerate(SHAPES)]
    call = in_mode(mode, lambda tensors: [hvd.grouped_allreduce(tensors, op=op) for op in ops])
    for op, results in zip(ops, call(own), strict=True):
        for seed, (shape, result) in enumerate(zip(SHAPES, results, strict=True)):
            expected = reduced([values(rank, shape, dtype, seed) for rank in range(rank_count)], op)
            check(result, expected, dtype, (op, shape))


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_averages_at_the_ends(rank_count, mode):
    """C90: integers are exact up to the ends of their dtype; the average of finite numbers is finite."""
    for dtype in (*INTEGERS, *FLOATS):
        ends = np.array([dtype.min, dtype.max, dtype.max // 2 if dtype.is_integer else 1.5], dtype.as_numpy_dtype)
        own = tf.constant(ends)
        name = f"ends.{dtype.name}"
        many = tf.constant(np.repeat(ends, rank_count))  # tf.repeat lacks some dtypes
        averaged = in_mode(mode, lambda x, name=name: hvd.allreduce(x, name=name))(own)
        scattered = in_mode(mode, lambda x, name=name: hvd.reducescatter(x, name=f"{name}.parts"))(many)
        mine = many[3 * hvd.rank() : 3 * hvd.rank() + 3]
        assert averaged.numpy().tolist() == own.numpy().tolist(), dtype
        assert scattered.numpy().tolist() == mine.numpy().tolist(), dtype


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_bool(rank_count, mode):
    own = tf.constant([hvd.rank() == 0, True, False])
    call = in_mode(mode, lambda x: [hvd.allreduce(x, op=op) for op in (hvd.Sum, hvd.Product)] + [hvd.allgather(x)])
    anywhere, everywhere, joined = call(own)
    assert anywhere.numpy().tolist() == [True, True, False]
    assert everywhere.numpy().tolist() == [False, True, False]
    assert joined.numpy().tolist() == [True, True, False, False, True, False]


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_allreduce_scaled_and_mixed(rank_count, mode):
    """The factors are doubles: 1/3 in 32 bits would be seen here."""
    own = [tf.constant([3.0, 6.0], tf.float64), tf.constant(7, tf.int32), tf.constant([1.5], tf.bfloat16)]
    scaled = in_mode(
        mode, lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=0.1, name="scaled")
    )
    check(scaled(own[0]), np.array([1.0, 2.0]) * rank_count * 0.1, tf.float64)
    mixed = in_mode(mode, lambda *x: hvd.grouped_allreduce(list(x), op=hvd.Sum))(*own)
    assert [t.dtype for t in mixed] == [tf.float64, tf.int32, tf.bfloat16]
    assert mixed[1].numpy() == 7 * rank_count and float(mixed[2][0]) == 1.5 * rank_count


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_compression_and_sixteen_bits(rank_count, mode):
    """C44: the average of 60000 and 60000 in float16 is 60000."""
    big = tf.constant([60000.0], tf.float16)
    assert in_mode(mode, lambda x: hvd.allreduce(x))(big).numpy()[0] == 60000
    third = tf.constant([1 / 3])
    for compression, dtype in ((hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)):
        result = in_mode(mode, lambda x, c=compression: hvd.allreduce(x, compression=c))(third)
        assert result.dtype == tf.float32
        assert float(result[0]) == float(tf.cast(tf.cast(1 / 3, dtype), tf.float32))


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", (tf.bool, *FLOATS, *INTEGERS), ids=lambda dtype: dtype.name)
def test_moving_verbs(rank_count, mode, dtype):
    """allgather with uneven rows, none on rank 0; broadcast; alltoall with and without splits."""
    rank = hvd.rank()

    def call(uneven, even, splits):
        first, second = hvd.grouped_allgather([uneven, even])
        received, counts = hvd.alltoall(even, splits=splits)
        return first, second, hvd.broadcast(even, rank_count - 1), hvd.alltoall(even), received, counts

    uneven = [values(r, (2 * r, 3), dtype, 1) for r in range(rank_count)]
    even = [values(r, (rank_count * 2, 2), dtype, 2) for r in range(rank_count)]
    splits = tf.constant([1] * (rank_count - 1) + [2], tf.int32)
    first, second, root, equal, some, counts = in_mode(mode, call)(uneven[rank], even[rank], splits)
    check(first, np.concatenate([wide(t) for t in uneven]), dtype)
    check(second, np.concatenate([wide(t) for t in even]), dtype)
    check(root, wide(even[-1]), dtype)
    check(equal, np.concatenate([wide(t)[2 * rank : 2 * rank + 2] for t in even]), dtype)
    mine = 2 if rank == rank_count - 1 else 1
    check(some, np.concatenate([wide(t)[rank : rank + mine] for t in even]), dtype)
    assert counts.numpy().tolist() == [mine] * rank_count and counts.dtype == tf.int32


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_reducescatter(rank_count, mode):
    shapes = ((5, 2), (1, 3), (rank_count * 2,))
    own = [values(hvd.rank(), shape, tf.float64, seed) for seed, shape in enumerate(shapes)]
    for op in (hvd.Sum, hvd.Average):
        results = in_mode(mode, lambda *x, op=op: hvd.grouped_reducescatter(list(x), op=op))(*own)
        for seed, (shape, result) in enumerate(zip(shapes, results, strict=True)):
            whole = reduced([values(r, shape, tf.float64, seed) for r in range(rank_count)], op)
            rows, more = divmod(shape[0], rank_count)
            start = hvd.rank() * rows + min(hvd.rank(), more)
            check(result, whole[start : start + rows + (hvd.rank() < more)], tf.float64)


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_process_sets(rank_count, mode):
    members, stranger = ([0, 2], 1) if rank_count == 3 else ([1], 0)
    part = hvd.add_process_set(members)
    try:
        number = part.process_set_id
        assert in_mode(mode, lambda: hvd.size_op(number))().numpy() == len(members)
        assert in_mode(mode, lambda: hvd.process_set_included_op(number))().numpy() == (hvd.rank() in members)
        one = tf.constant([float(hvd.rank())])
        if hvd.rank() == stranger:
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {stranger} is not in process set"):
                in_mode(mode, lambda: hvd.allreduce(one, process_set=part))()
        else:
            assert in_mode(mode, lambda: hvd.allreduce(one, process_set=part))().numpy() == [1.0]
            root = members[-1]
            assert in_mode(mode, lambda: hvd.broadcast(one, root, process_set=part))().numpy() == [root]
        hvd.barrier()
    finally:
        assert hvd.remove_process_set(part)


@ranks(2)
def test_ops_that_give_ranks_and_any_name(rank_count):
    @tf.function
    def ask():
        return hvd.rank_op(), hvd.local_rank_op(), hvd.size_op(), hvd.local_size_op()

    assert [int(answer) for answer in ask()] == [hvd.rank(), hvd.local_rank(), 2, hvd.local_size()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no process set 77"):
        hvd.size_op(77)
    for name in ("plain", 'with "quotes"', "Grüße", "a/b"):
        assert hvd.allreduce(tf.ones(1), op=hvd.Sum, name=name).numpy() == [2.0]
        assert tf.function(lambda name=name: hvd.allreduce(tf.ones(1), op=hvd.Sum, name=name))().numpy() == [2.0]
    with pytest.raises(ValueError, match="UTF-8"):
        hvd.allreduce(tf.ones(1), name="\ud800")
    with pytest.raises(ValueError, match="string"):
        hvd.allreduce(tf.ones(1), name=5)


@ranks(2)
def test_variables_and_objects(rank_count):
    rank = hvd.rank()
    variables = [tf.Variable(tf.ones([3]) * rank), tf.Variable(rank, dtype=tf.int64), tf.Variable(tf.zeros([0, 2]))]
    hvd.broadcast_variables(variables, 1)
    assert variables[0].numpy().tolist() == [1.0] * 3 and variables[1].numpy() == 1
    variables[0].assign(tf.ones([3]) * (rank + 5))
    tf.function(lambda: hvd.broadcast_variables(variables[:1], 0, inplace=True))()
    assert variables[0].numpy().tolist() == [5.0] * 3
    assert hvd.broadcast_(variables[:1], 1)[0] is variables[0]
    with pytest.raises(ValueError, match="must be a variable"):
        hvd.broadcast_([tf.ones(2)], 0)
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=1)([rank]) == [1]
    assert hvd.allgather_object("x" * rank) == ["", "x"]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


@ranks(2)
def test_v1_graph_and_session(rank_count):
    """Ops in a graph of TensorFlow 1, run by a session; after an error the session goes on."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        total = hvd.allreduce(x, op=hvd.Sum, name="v1")
        variable = tf.compat.v1.get_variable("v", initializer=tf.ones([2]) * hvd.rank(), use_resource=True)
        start = hvd.broadcast_global_variables(1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(start)
        assert session.run(variable).tolist() == [1.0, 1.0]
        with pytest.raises(tf.errors.FailedPreconditionError, match="shape differs"):
            session.run(total, {x: [1.0] * (1 + hvd.rank())})
        assert session.run(total, {x: [1.0, 2.0]}).tolist() == [2.0, 4.0]
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.ones([2]) * hvd.rank(), use_resource=True)
        hook = hvd.BroadcastGlobalVariablesHook(1)
        for _ in range(2):  # a second session on the same graph
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable).tolist() == [1.0, 1.0]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(hvd.broadcast_global_variables(0))  # of which there are none
    with pytest.raises(ValueError, match="root_rank"):
        hvd.BroadcastGlobalVariablesHook("0")


@ranks(2, 3)
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_broadcast_in_a_session(rank_count, resource):
    """What is returned has the root's values, and evaluating one tensor overwrites all variables."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=[float(hvd.rank())] * 2, use_resource=resource) for name in "ab"
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        results = hvd.broadcast_(variables, 1)
        assert session.run(results[0]).tolist() == [1.0, 1.0]
        assert [value.tolist() for value in session.run(variables)] == [[1.0, 1.0]] * 2
        assert hvd.broadcast_([], 0) == []


@ranks(2)
def test_order_of_arguments_of_grouped_reducescatter(rank_count):
    """As in Horovod: tensors, device, compression, op, process set, factors."""
    everyone = hvd.global_process_set
    (part,) = hvd.grouped_reducescatter([tf.ones(4)], "", hvd.Compression.none, hvd.Sum, everyone, 3.0, 0.5)
    assert part.numpy().tolist() == [3.0, 3.0]
