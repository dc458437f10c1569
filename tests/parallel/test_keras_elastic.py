"""KerasState and its callbacks, on each backend; Horovod's own expectations too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from ranks import ranks

import sirtaki.keras as hvd
from sirtaki import elastic


def _model(value: float) -> keras.Model:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    model.set_weights([np.full((2, 2), value), np.full(2, value)])
    return model


@ranks(2)
def test_state_is_synchronized_restored_and_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """First with rank 0 as the source, then in an elastic job with the newest commit, that of rank 1."""
    model = _model(1.0 + hvd.rank())
    optimizer = keras.optimizers.Adam(0.5 + hvd.rank())
    state = hvd.elastic.KerasState(model, optimizer, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()

    def values() -> tuple[set[float], float, int, int]:
        weights = {float(entry) for weight in model.get_weights() for entry in weight.flat}
        return weights, float(np.asarray(optimizer.learning_rate.numpy())), state.batch, state.epoch

    def change(value: float) -> None:
        model.set_weights([np.full((2, 2), value), np.full(2, value)])
        optimizer.learning_rate.assign(value)
        state.batch, state.epoch = 21, 11

    assert values() == ({1.0}, 0.5, 20, 10)
    change(3.0)
    state.restore()
    assert values() == ({1.0}, 0.5, 20, 10)
    change(3.0)
    kept = [array.ctypes.data for array in state._kept]
    state.commit()
    assert [array.ctypes.data for array in state._kept] == kept
    for _ in range(2):
        state.restore()
        assert values() == ({3.0}, 3.0, 21, 11)
        change(4.0)

    monkeypatch.setenv("SIRTAKI_ELASTIC", "1")
    monkeypatch.setattr(elastic, "progress", hvd.rank())
    change(5.0 + hvd.rank())
    state.sync()
    assert (values(), elastic.progress) == (({6.0}, 6.0, 21, 11), 1)


@ranks(2)
def test_compiled_optimizer_is_part_of_the_state() -> None:
    model = _model(1.0)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    state = hvd.elastic.KerasState(model)
    x, y = np.ones((8, 2)), np.zeros((8, 2))
    model.fit(x, y, batch_size=4, verbose=0)
    assert int(np.asarray(model.optimizer.iterations.numpy())) == 2
    state.restore()
    assert int(np.asarray(model.optimizer.iterations.numpy())) == 0
    assert not any(np.any(np.asarray(m.numpy())) for m in model.optimizer.variables[2:])
    assert {float(entry) for weight in model.get_weights() for entry in weight.flat} == {1.0}


@ranks(2)
def test_callbacks_keep_the_state() -> None:
    model = _model(1.0)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    state = hvd.elastic.KerasState(model, batch=3, epoch=2)
    commits = []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    x, y = np.ones((12, 2)), np.zeros((12, 2))
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert commits == [(2, 5), (3, 0), (3, 2), (4, 0)]
    assert (state.epoch, state.batch) == (4, 0)


@ranks(2)
def test_models_that_differ_are_named() -> None:
    floatx = keras.backend.floatx()  # other tests of the job set it
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2 + hvd.rank())])
    state = hvd.elastic.KerasState(model)
    if hvd.rank() == 0:
        shapes = [((2, 2), floatx), ((2,), floatx)]
        assert hvd.broadcast_object(shapes, 0, name="elastic.shapes") == shapes
        return
    with pytest.raises(ValueError, match=rf"rank 1 has 2 variables .* number 0 differs: \[\(\(2, 3\), '{floatx}'\)\]"):
        state.sync()
