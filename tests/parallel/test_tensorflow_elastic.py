"""TensorFlowState, in eager mode and in a session, and which errors of TensorFlow lead back to the last commit."""

from __future__ import annotations

import pytest
import tensorflow as tf
from ranks import ranks

import sirtaki.tensorflow as hvd
from sirtaki.checks import gradient_kinds


@ranks(2)
def test_state_in_eager_mode() -> None:
    weight = tf.Variable([1.0 + hvd.rank(), 2.0], dtype=tf.bfloat16)
    count = tf.Variable(3 + hvd.rank(), dtype=tf.int64)
    state = hvd.elastic.TensorFlowState([weight, count], batch=20 + hvd.rank())
    state.sync()
    assert (weight.numpy().tolist(), int(count), state.batch) == ([1.0, 2.0], 3, 20)
    weight.assign([5.0, 6.0])
    state.batch = 21
    state.restore()
    assert (weight.numpy().tolist(), state.batch) == ([1.0, 2.0], 20)
    weight.assign_add([1.0, 1.0])
    state.commit()
    weight.assign([5.0, 6.0])
    state.restore()
    assert weight.numpy().tolist() == [2.0, 3.0]


@ranks(2)
def test_state_in_a_session() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", initializer=float(hvd.rank()))
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=hvd.rank())
        state.sync()
        assert (session.run(weight), state.step) == (0.0, 0)
        weight.load(7.0, session)
        state.restore()
        assert session.run(weight) == 0.0


@ranks(2)
def test_errors_of_a_failed_job() -> None:
    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])

    def raising(error: Exception) -> None:
        @hvd.elastic.run
        def train(state: hvd.elastic.TensorFlowState) -> None:
            raise error

        train(state)

    with pytest.raises(hvd.HorovodInternalError, match="node SirtakiAllreduce failed"):
        raising(tf.errors.UnknownError(None, None, "node SirtakiAllreduce failed"))
    for error in (
        tf.errors.UnknownError(None, None, "cuDNN does not work"),
        tf.errors.FailedPreconditionError(None, None, "node SirtakiAllreduce: the ranks disagree"),
    ):
        with pytest.raises(type(error)):
            raising(error)


@ranks(2)
def test_what_was_agreed_in_graphs_holds_for_ranks_that_trace_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has traced its step in a job before; rank 1 traces it now, when rank 0 does not come to an agreement."""
    monkeypatch.setattr(gradient_kinds, "_made", {})
    table, unused = tf.Variable([[1.0], [2.0]], name="table"), tf.Variable(1.0, name="unused")

    @tf.function
    def step() -> list[tf.Tensor]:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()]))
        return [tf.convert_to_tensor(grad) for grad in tape.gradient(loss, [table, unused])]

    if hvd.rank() == 0:
        with monkeypatch.context() as alone:
            alone.setattr(gradient_kinds, "agreed_kinds", lambda kinds, *_: kinds)
            step.get_concrete_function()
    parts = hvd.allgather_object(gradient_kinds.made() if hvd.rank() == 0 else {})
    gradient_kinds.carry_over(parts)
    grads = step()
    assert [grad.numpy().tolist() for grad in grads] == [[[0.5], [0.5]], 0.0]
    gradient_kinds.begin_job()  # forgets it
