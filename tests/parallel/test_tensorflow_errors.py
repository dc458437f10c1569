"""Wrong calls: refused with the value, or, if the ranks disagree, an error on every rank; the next call works."""

import concurrent.futures
import re

import pytest
import tensorflow as tf
from jobs import run_script
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd


def check_alive(mode: str, count: int) -> None:
    """Nothing is lost by an error."""
    alive = in_mode(mode, lambda: hvd.allreduce(tf.ones(3), op=hvd.Sum, name="alive"))
    assert alive().numpy().tolist() == [count] * 3


def first(one, other):
    """`one` on rank 0, `other` on the rest."""
    return one if hvd.rank() == 0 else other


MISMATCHES = {
    "dtype": lambda: hvd.allreduce(first(tf.ones(4), tf.ones(4, tf.float64)), name="m"),
    "dimensions": lambda: hvd.allreduce(first(tf.ones(4), tf.ones((2, 2))), name="m"),
    "shape": lambda: hvd.allreduce(first(tf.ones((2, 3)), tf.ones((3, 2))), name="m"),
    "allgather trailing": lambda: hvd.allgather(first(tf.ones((2, 3)), tf.ones((2, 4))), name="m"),
    "broadcast shape": lambda: hvd.broadcast(first(tf.ones(2), tf.ones(3)), 0, name="m"),
    "root": lambda: hvd.broadcast(tf.ones(2), first(0, 1), name="m"),
    "op": lambda: hvd.allreduce(tf.ones(2), op=first(hvd.Sum, hvd.Max), name="m"),
    "scale": lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, prescale_factor=first(1.0, 2.0), name="m"),
    "reducescatter shape": lambda: hvd.reducescatter(first(tf.ones((4, 2)), tf.ones((6, 2))), name="m"),
    "alltoall trailing": lambda: hvd.alltoall(first(tf.ones((6, 2)), tf.ones((6, 3))), name="m"),
    "grouped count": lambda: hvd.grouped_allreduce([tf.ones(2)] * first(2, 3), name="m"),
}


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", MISMATCHES)
def test_ranks_disagree(rank_count, what, mode):
    """C47: a table of what each rank asked for, and where."""
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        in_mode(mode, MISMATCHES[what])()
    text = str(caught.value)
    assert "rank" in text and "test_tensorflow_errors.py:" in text, text
    check_alive(mode, rank_count)


REFUSED = {
    "root": lambda: hvd.broadcast(tf.ones(2), 9),
    "uneven alltoall": lambda: hvd.alltoall(tf.ones(hvd.size() + 1)),
    "splits beyond": lambda: hvd.alltoall(tf.ones(2), splits=[9] * hvd.size()),
    "splits count": lambda: hvd.alltoall(tf.ones(2), splits=[1] * (hvd.size() + 1)),
    "splits shape": lambda: hvd.alltoall(tf.ones(4), splits=[[1] * hvd.size()]),
    "scalar allgather": lambda: hvd.allgather(tf.constant(1.0)),
    "scalar reducescatter": lambda: hvd.reducescatter(tf.constant(1.0)),
    "average of bool": lambda: hvd.allreduce(tf.constant([True])),
}


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", REFUSED)
def test_refused_when_it_runs(rank_count, what, mode):
    with pytest.raises(tf.errors.InvalidArgumentError):
        in_mode(mode, REFUSED[what])()
    check_alive(mode, rank_count)


@ranks(2)
def test_one_session_and_one_function_go_on(rank_count):
    """The session or function that an op has failed in is used again, and so are the other ops of its graph."""
    disagree, refused = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        alive = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="alive")
        wrong = [(call(), disagree) for call in MISMATCHES.values()] + [(call(), refused) for call in REFUSED.values()]
        for fetched, error in wrong:
            with pytest.raises(error):
                session.run(fetched)
            assert session.run(alive).tolist() == [rank_count] * 3
    total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), input_signature=[tf.TensorSpec([None])])
    for _ in range(2):
        with pytest.raises(disagree, match="shape differs"):
            total(tf.ones(first(2, 3)))
        assert total(tf.ones(2)).numpy().tolist() == [rank_count] * 2


@ranks(2)
def test_refused_when_it_is_made(rank_count):
    for call, error in (
        (lambda: hvd.allreduce(tf.ones(2), op=17), ValueError),
        (lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, average=True), ValueError),
        (lambda: hvd.allreduce(tf.ones(2), prescale_factor=float("nan")), ValueError),
        (lambda: hvd.allreduce(tf.ones(2), process_set="all"), ValueError),
        (lambda: hvd.allreduce(tf.ones(2), process_set=hvd.ProcessSet([0])), ValueError),
        (lambda: hvd.broadcast(tf.ones(2), "0"), ValueError),
        (lambda: hvd.alltoall(tf.ones(2), splits=[]), ValueError),
        (lambda: hvd.grouped_allreduce([]), ValueError),
        (lambda: hvd.grouped_allgather(tf.ones(2)), ValueError),
        (lambda: hvd.grouped_reducescatter(None), ValueError),
        (lambda: hvd.reducescatter(tf.IndexedSlices(tf.ones((1, 2)), [0])), NotImplementedError),
        (lambda: hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2)), [0]), op=hvd.Max), NotImplementedError),
        (lambda: hvd.elastic.TensorFlowState(), ValueError),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(ValueError, match=r"shard_optimizer_state=True does not work with .*GradientDescentOptimizer"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), shard_optimizer_state=True)
    check_alive("eager", rank_count)


WRONG_KINDS = {
    "string": (
        lambda: hvd.allreduce(tf.constant(["text"])),
        "dtype string cannot be sent, got .*text.*broadcast_object",
    ),
    "complex": (lambda: hvd.grouped_allreduce([tf.ones(2), tf.constant([1j])]), "dtype complex128 cannot be sent"),
    "variant": (lambda: hvd.allgather(tf.data.Dataset.range(3)._variant_tensor), "dtype variant cannot be sent"),
    "ragged": (lambda: hvd.allreduce(tf.ragged.constant([[1], [2, 3]])), "RaggedTensor .*send its flat_values"),
    "sparse": (lambda: hvd.reducescatter(tf.sparse.from_dense([[1.0]])), "SparseTensor.*tf.IndexedSlices"),
    "dictionary": (lambda: hvd.broadcast({"a": 1}, 0), r"cannot make a tensor of dict \{'a': 1\}; use grouped"),
    "nothing": (lambda: hvd.allreduce(None), "cannot make a tensor of NoneType None"),
    "uneven list": (lambda: hvd.alltoall([tf.ones(2), tf.ones(3)]), "cannot make a tensor of list .*grouped call"),
    "string variable": (lambda: hvd.broadcast_variables([tf.Variable(["a"])], 0), "dtype string cannot be sent"),
}


@ranks(2)
def test_values_that_are_not_tensors_are_refused(rank_count):
    for what, (call, text) in WRONG_KINDS.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert re.search(text, str(caught.value), re.DOTALL), (what, str(caught.value))
    with pytest.raises(TypeError, match="dtype string cannot be sent"):
        tf.function(WRONG_KINDS["string"][0])()
    assert hvd.allreduce([1.0, 2.0], op=hvd.Sum).numpy().tolist() == [2.0, 4.0]
    for call, text in (
        (lambda: hvd.alltoall(tf.ones(2), splits=[0.5, 0.5]), r"int32 numbers, got list \[0\.5, 0\.5\]"),
        (lambda: hvd.broadcast_variables(tf.Variable([1.0]), 0), "must be a list of variables, got"),
        (lambda: hvd.allreduce(tf.ones(2), compression="fp16"), "compress and decompress, got 'fp16'"),
        (lambda: hvd.DistributedGradientTape(tf.GradientTape(), compression="fp16"), "decompress, got 'fp16'"),
        (lambda: hvd.DistributedGradientTape(tf.GradientTape(), hvd.Compression.fp16), "device_dense must be a string"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    check_alive("eager", rank_count)


@ranks(2)
def test_same_name_twice(rank_count):
    """Within a graph names are made unique; of two graphs that run at once with one name, the second is refused."""
    both = tf.function(lambda: [hvd.allreduce(tf.ones(1) * i, op=hvd.Sum, name="twice") for i in (1, 2)])
    assert [float(t[0]) for t in both()] == [2.0, 4.0]
    one = tf.function(lambda: hvd.allreduce(tf.ones(1), op=hvd.Sum, name="one"))
    if hvd.rank() == 1:
        hvd.allreduce(tf.ones(1), name="seen")
        assert float(one()[0]) == 2.0
        return
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(one) for _ in range(2)]
        done, waiting = concurrent.futures.wait(calls, return_when=concurrent.futures.FIRST_COMPLETED)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one"):
            done.pop().result()
        hvd.allreduce(tf.ones(1), name="seen")
        assert float(waiting.pop().result()[0]) == 2.0


@ranks(2)
@pytest.mark.parametrize("op", (hvd.Min, hvd.Max, hvd.Product))
def test_no_gradient(rank_count, op):
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=op)
    with pytest.raises(NotImplementedError, match=op.name):
        tape.gradient(y, x)


@ranks(2)
def test_xla(rank_count):
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(lambda: hvd.allreduce(tf.ones(2)), jit_compile=True)()
    inner = tf.function(lambda x: x * 2, jit_compile=True)
    outer = tf.function(lambda: inner(hvd.allreduce(inner(tf.ones(1)), op=hvd.Sum)))
    assert outer().numpy() == [8.0]


def test_before_init_after_shutdown_and_when_a_rank_leaves():
    """With one thread in TensorFlow's pool, on which 24 ops in another order on each rank meet all the same."""
    ended = run_script(
        2,
        """
        import os, random, tensorflow as tf, sirtaki.tensorflow as hvd
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        def refused(call):
            try:
                call()
            except tf.errors.FailedPreconditionError as error:
                assert "init" in str(error), error
                return True
        graph = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, name="g"))
        assert refused(graph) and refused(lambda: hvd.allreduce(tf.ones(2))) and refused(hvd.rank_op)
        hvd.init()
        assert graph().numpy().tolist() == [2.0, 2.0]
        order = list(range(24))
        random.Random(hvd.rank()).shuffle(order)
        many = tf.function(lambda x: [hvd.allreduce(x, op=hvd.Sum, name=f"t{i}") for i in order])
        for _ in range(5):
            assert all(float(t) == 2.0 for t in many(tf.ones([])))
        hvd.shutdown()
        assert refused(graph)
        hvd.init()
        assert graph().numpy().tolist() == [2.0, 2.0]
        print("all well")
        if hvd.rank() == 1:
            hvd.shutdown()
            os._exit(0)
        try:
            tf.function(lambda x: hvd.grouped_allreduce([hvd.allreduce(x, name="a"), x], name="b")[0])(tf.ones(4))
        except tf.errors.OpError as error:
            print("caught", type(error).__name__, "of rank 1" if "rank 1" in str(error) else error)
        """,
    )
    assert ended.output.count("all well") == 2, ended.output
    assert re.search(r"^caught (FailedPreconditionError|UnknownError) of rank 1$", ended.output, re.M), ended.output


@pytest.mark.long
def test_ops_without_the_package_and_one_rank_alone():
    """The library alone, as a program that loads a saved graph might have it, refuses to run and says what to do."""
    ended = run_script(
        1,
        """
        import tensorflow as tf, pathlib, sirtaki
        ops = tf.load_op_library(str(pathlib.Path(sirtaki.__file__).parent / "_tensorflow_ops.so"))
        for call in (
            lambda: ops.sirtaki_allreduce(tensors=[tf.ones(2)], label=tf.constant([], tf.uint8)),
            lambda: ops.sirtaki_topology(question=0),
        ):
            try:
                call()
            except tf.errors.FailedPreconditionError as error:
                print("refused" if "import sirtaki.tensorflow" in str(error) else error)
        import sirtaki.tensorflow as hvd
        hvd.init()
        x, weight = tf.range(6.0), tf.Variable([2.0, 3.0])
        def all_of_them():
            pairs = [hvd.allreduce(x, op=op) for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)]
            pairs += [hvd.allgather(x), hvd.broadcast(x, 0), hvd.reducescatter(x), *hvd.grouped_allreduce([x, x])]
            return [*pairs, hvd.alltoall(x), hvd.alltoall(x, splits=[6])[0]]
        def step():
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(weight**2)
            return tape.gradient(loss, weight)
        for call in (all_of_them, tf.function(all_of_them)):
            assert all(result.numpy().tolist() == [0, 1, 2, 3, 4, 5] for result in call())
        for call in (step, tf.function(step)):
            assert call().numpy().tolist() == [4.0, 6.0]
        hvd.broadcast_variables([weight], 0)
        hvd.check_parameters([weight])
        assert int(hvd.join()) == 0 and int(hvd.size_op()) == 1
        try:
            hvd.broadcast(x, 1)
        except tf.errors.InvalidArgumentError as error:
            print("one rank alone")
        """,
    )
    assert ended.code == 0 and ended.output.count("refused") == 2 and "one rank alone" in ended.output, ended.output
