"""C43: gradients that are None, slices or dense, on each rank something else; missing ones count as zeros."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd
from sirtaki.native import core
from sirtaki.tensorflow.gradients import gradient_kinds

ROWS = 12
# What each of two ranks has of the gradient of one table.
PAIRS = (("none", "slices"), ("slices", "dense"), ("none", "dense"), ("dense", "none"), ("slices", "slices"))


def loss_of(table, kind, rank):
    """Of a gradient of this kind; the slices' rows differ by rank."""
    if kind == "none":
        return tf.constant(0.0, table.dtype)
    picked = tf.gather(table, [1, 1, 2 + rank]) if kind == "slices" else table
    return tf.reduce_sum(tf.square(picked)) * (rank + 2.0)


def tables() -> list[tf.Variable]:
    return [tf.Variable(np.arange(ROWS * 2.0).reshape(ROWS, 2) + number) for number in range(len(PAIRS))]


def gradients_of(variables, kinds, rank):
    """As a tape has them; None as zeros."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([loss_of(table, kind, rank) for table, kind in zip(variables, kinds, strict=True)])
    grads = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(grad).numpy() for grad in grads]


def expected(variables):
    parts = [gradients_of(variables, [pair[rank] for pair in PAIRS], rank) for rank in range(2)]
    return [(one + other) / 2 for one, other in zip(*parts, strict=True)]


def check(grads, variables):
    for pair, grad, wanted in zip(PAIRS, grads, expected(variables), strict=True):
        assert isinstance(grad, tf.IndexedSlices) == ("slices" in pair and "dense" not in pair), pair
        np.testing.assert_allclose(tf.convert_to_tensor(grad), wanted, err_msg=str(pair))


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_tape(rank_count, mode):
    variables = tables()
    own = [pair[hvd.rank()] for pair in PAIRS]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([loss_of(table, kind, hvd.rank()) for table, kind in zip(variables, own, strict=True)])
        return tape.gradient(loss, variables)

    call = in_mode(mode, step)
    for _ in range(2):
        check(call(), variables)


@ranks(2)
@pytest.mark.parametrize("mode", (*MODES, "session"))
def test_v1_optimizer(rank_count, mode):
    """Against a serial step with the mean of both ranks' gradients."""
    own = [pair[hvd.rank()] for pair in PAIRS]
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
    start = tables()
    wanted = [table.numpy() - 0.5 * grad for table, grad in zip(start, expected(start), strict=True)]

    def minimize(variables):
        def loss():
            return tf.add_n([loss_of(table, kind, hvd.rank()) for table, kind in zip(variables, own, strict=True)])

        return optimizer.minimize(
            loss if tf.executing_eagerly() or tf.inside_function() else loss(), var_list=variables
        )

    if mode == "session":
        values = [table.numpy() for table in start]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = [tf.compat.v1.get_variable(f"v{i}", initializer=value) for i, value in enumerate(values)]
            train = minimize(variables)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
            found = session.run(variables)
    else:
        in_mode(mode, lambda: minimize(start) and None)()
        found = [table.numpy() for table in start]
    for value, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, other)


@ranks(2)
def test_later_traces_hold_to_the_first(rank_count):
    """Rank 0 alone traces anew, with all kinds of gradients; nobody waits for it, and steady steps exchange nothing."""
    variables = tables()
    kinds = [pair[hvd.rank()] for pair in PAIRS]
    x = tf.ones([2], tf.float64)

    @tf.function
    def step(x, kinds):
        with hvd.DistributedGradientTape(tf.GradientTape(watch_accessed_variables=False)) as tape:
            tape.watch(variables)
            tape.watch(x)
            loss = tf.add_n([loss_of(table, kind, hvd.rank()) for table, kind in zip(variables, kinds, strict=True)])
            loss += tf.reduce_sum(x**2)
        return tape.gradient(loss, [variables, x])

    check(step(x, tuple(kinds))[0], variables)
    tensors = core.statistics()["tensors"]
    check(step(x, tuple(kinds))[0], variables)
    steady = core.statistics()["tensors"] - tensors
    for shift in range(1, 4):
        kinds = [pair[hvd.rank()] for pair in PAIRS]
        if hvd.rank() == 0:
            kinds = ["none", "slices", "dense", "none"][shift : shift + 1] * len(PAIRS)
        everyone = hvd.allgather_object(kinds)
        parts = [gradients_of(variables, other, rank) for rank, other in enumerate(everyone)]
        tensors = core.statistics()["tensors"]
        grads, of_x = step(x, tuple(kinds))
        assert core.statistics()["tensors"] - tensors <= steady + len(PAIRS)  # no more than its rows as tables
        for grad, one, other in zip(grads, *parts, strict=True):
            np.testing.assert_allclose(tf.convert_to_tensor(grad), (one + other) / 2)
        assert of_x.numpy().tolist() == [2.0, 2.0]
    assert step.experimental_get_tracing_count() == (4 if hvd.rank() == 0 else 1)


@ranks(2)
def test_tensor_of_unknown_shape(rank_count):
    """A source that is no variable, used on rank 0 only; both ranks trace once."""

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def step(table):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(table)
            loss = tf.reduce_sum(tf.gather(table, [1])) if hvd.rank() == 0 else tf.constant(0.0)
        return tape.gradient(loss, table)

    for columns in (2, 3):
        slices = step(tf.ones([8, columns]))
        assert slices.indices.numpy().tolist() == [1] and slices.values.numpy().tolist() == [[0.5] * columns]


@ranks(2)
def test_agreements_are_deleted_with_the_variables(rank_count):
    def build():
        variable = tf.Variable(tf.ones([2, 2]))

        @tf.function
        def step():
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(variable)
            return tape.gradient(loss, [variable])

        step()

    gc.collect()
    before = len(gradient_kinds._numbers), len(gradient_kinds._agreements)
    for _ in range(3):
        build()
        gc.collect()
    assert (len(gradient_kinds._numbers), len(gradient_kinds._agreements)) <= before


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_ranks_with_other_numbers_of_sources(rank_count, mode):
    variables = [tf.Variable([1.0], name=name) for name in ("one", "two", "three")[: 2 + hvd.rank()]]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n(variables)
        return tape.gradient(loss, variables)

    told = r"\(rank 0: 2; rank 1: 3\): only rank 1 has three:0\. "
    with pytest.raises(tf.errors.FailedPreconditionError, match=told):
        in_mode(mode, step)()
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum)) == 2.0
