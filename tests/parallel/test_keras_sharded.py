"""shard_optimizer_state in Keras 3: the same training and the same files as with the whole state on every rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_training as training
import numpy as np
import pytest
from ranks import ranks

import sirtaki.keras as hvd
from sirtaki.exchange import allgather_object, broadcast_object


def decayed() -> keras.Optimizer:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "weight decay, not of biases": decayed,
    "schedule": lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "clipped values": lambda: keras.optimizers.Nadam(0.01, clipvalue=0.01),
    "two passes": lambda: keras.optimizers.Lion(0.01, gradient_accumulation_steps=2),
}
CLIPPED: dict[str, Callable[[], keras.Optimizer]] = {
    "by each norm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "by the norm of all": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
}


def sharded(optimizer: keras.Optimizer, **options: Any) -> Any:
    return hvd.DistributedOptimizer(optimizer, shard_optimizer_state=True, **options)


def numbers_in(optimizer: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in optimizer.variables)


@ranks(2)
def test_the_same_bits(keras_backend: str) -> None:
    check_same_bits("weight decay, not of biases")


@ranks(2, 3, backends=("torch",))  # TensorFlow compiles each for seconds
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_with(name: str, keras_backend: str) -> None:
    check_same_bits(name)


def check_same_bits(name: str) -> None:
    whole = training.trained(hvd.DistributedOptimizer(OPTIMIZERS[name]()))
    model = training.trained(sharded(OPTIMIZERS[name]()))
    if name == "two passes":  # each pass is reduced, in place of their sum
        training.check_equal(model, whole)
    else:
        training.check_equal(model, whole, tolerance=np.finfo(np.float64).tiny)


@ranks(2, backends=("torch",))
@pytest.mark.parametrize("name", CLIPPED)
def test_norms_are_those_of_whole_gradients(name: str, keras_backend: str) -> None:
    whole = training.trained(hvd.DistributedOptimizer(CLIPPED[name]()))
    training.check_equal(training.trained(sharded(CLIPPED[name]())), whole, tolerance=1e-7)  # norms have 32 bits


@ranks(2, backends=("torch",))
def test_each_rank_has_its_part(keras_backend: str) -> None:
    whole, model = training.make_model(), training.make_model()
    optimizers = [keras.optimizers.Adam(0.01), sharded(keras.optimizers.Adam(0.01))]
    for optimizer, of in zip(optimizers, (whole, model), strict=True):
        optimizer.build(of.trainable_variables)
    padding = 2 * 16 * len(model.trainable_variables)
    assert numbers_in(optimizers[1]) <= numbers_in(optimizers[0]) / hvd.size() + padding
    assert numbers_in(optimizers[1]) >= numbers_in(optimizers[0]) / hvd.size()


@ranks(2)
def test_a_file_does_not_know_the_number_of_ranks(tmp_path: Path, keras_backend: str) -> None:
    """The file is that of the plain optimizer. Training goes on from it with the same bits, sharded and plain."""
    folder = Path(broadcast_object(str(tmp_path)))
    x, y = training.data()
    mine = training.own(x), training.own(y)
    batch = training.SAMPLES // hvd.size()
    made = {
        "sharded": training.trained(sharded(keras.optimizers.Adam(0.01))),
        "whole": training.trained(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))),
    }
    files = {kind: folder / f"{kind}{hvd.rank()}.keras" for kind in made}
    states = {}
    for kind, model in made.items():
        model.save(files[kind])  # every rank, as the sharded state is gathered
        plain = keras.saving.load_model(files[kind], custom_objects={"Net": training.Net})
        states[kind] = [keras.ops.convert_to_numpy(variable) for variable in plain.optimizer.variables]
        training.fit(model, *mine, batch)
    assert all(np.array_equal(one, other) for one, other in zip(*states.values(), strict=True))
    for kind in made:
        again = hvd.load_model(files[kind], custom_objects={"Net": training.Net}, shard_optimizer_state=kind == "whole")
        training.fit(again, *mine, batch)
        training.check_equal(again, made[kind], tolerance=np.finfo(np.float64).tiny)


@ranks(2, backends=("torch",))
def test_ranks_that_begin_with_other_values(keras_backend: str) -> None:
    """The broadcast leaves each rank its own part of the state."""
    x, y = training.data()
    models = [training.compiled(training.make_model(seed), sharded(training.sgd())) for seed in (1 + hvd.rank(), 1)]
    for model in models:
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        batch = training.SAMPLES // hvd.size()
        training.fit(model, training.own(x), training.own(y), batch, callbacks=callbacks)
    training.check_equal(*models, tolerance=np.finfo(np.float64).tiny)


@ranks(2)
def test_gradients_that_are_missing_or_sparse(keras_backend: str) -> None:
    def trained(optimizer: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        layer = keras.layers.Embedding(7, 3)
        layer.build((None,))
        unused, plain = keras.Variable(np.ones(4)), plain_variable()
        variables = [layer.embeddings, unused, plain]
        for step in range(3):
            gradient = row_gradient(layer.embeddings, 2 * step + hvd.rank())
            optimizer.apply([gradient, None, keras.ops.ones(3, "float64")], variables)
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]

    whole = trained(hvd.DistributedOptimizer(training.sgd(), sparse_as_dense=True))
    found = trained(sharded(training.sgd(), sparse_as_dense=True))
    assert all(np.array_equal(one, other) for one, other in zip(whole, found, strict=True))
    if keras_backend == "tensorflow":
        with pytest.raises(ValueError, match=r"the gradient of .*embeddings' is sparse.*sparse_as_dense=True"):
            trained(sharded(training.sgd()))


def plain_variable() -> Any:
    """The backend's own, where Keras optimizers accept it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.Variable(np.ones(3), name="outer/plain")
    return keras.Variable(np.ones(3))


def row_gradient(variable: Any, row: int) -> Any:
    """A gradient of one row; sparse on TensorFlow."""
    values = np.full((1, 3), 1.0 + row)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.IndexedSlices(tf.constant(values), tf.constant([row]), tf.constant([7, 3]))
    gradient = keras.ops.zeros((7, 3), dtype=variable.dtype)
    gradient[row] = 1.0 + row
    return gradient


@ranks(2, backends=("torch",))
def test_what_cannot_be_divided_is_refused(keras_backend: str) -> None:
    def refused(because: str, optimizer: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=because):
            sharded(optimizer, **options)

    refused("Lamb: a step on two halves of a matrix differs", keras.optimizers.Lamb())
    refused("Adafactor: a step on two halves", keras.optimizers.Adafactor())
    refused("Muon: a step on two halves", keras.optimizers.Muon())
    refused("use_ema=True", keras.optimizers.Adam(use_ema=True))
    refused("LossScaleOptimizer, which chooses by whole gradients", keras.optimizers.LossScaleOptimizer(training.sgd()))
    refused("groups", training.sgd(), num_groups=2)
    refused("not distributed yet", hvd.DistributedOptimizer(training.sgd()))
    with pytest.raises(ValueError, match="must be True or False, got 'yes'"):
        hvd.DistributedOptimizer(training.sgd(), shard_optimizer_state="yes")
    optimizer = sharded(training.sgd())
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match="local variables"):
        optimizer.register_local_var(keras.Variable([1.0]))
    with pytest.raises(RuntimeError, match="cannot be copied or pickled"):
        pickle.dumps(optimizer)
    with pytest.raises(ValueError, match="cannot keep an optimizer with shard_optimizer_state=True"):
        hvd.elastic.KerasState(training.make_model(), optimizer)
    optimizer.build([keras.Variable(np.ones(3))])
    with pytest.raises(ValueError, match="has no state for it"):
        optimizer.apply([keras.ops.ones(3)], [keras.Variable(np.ones(3))])
    assert allgather_object(hvd.rank()) == list(range(hvd.size()))
