"""Callbacks, mixed precision, saving, and what is refused."""

import copy
import importlib
import pickle
import subprocess
import sys

import keras
import keras_training as training
import numpy as np
import pytest
from ranks import ranks

import sirtaki.keras as hvd
from sirtaki.exchange import allgather_object


def train(callbacks: list, epochs: int = 1, model: keras.Model | None = None, optimizer=None) -> tuple:
    model = training.compiled(model or training.make_model(), optimizer or hvd.DistributedOptimizer(training.sgd()))
    x, y = map(training.own, training.data())
    size = training.SAMPLES // hvd.size()
    history = model.fit(x, y, batch_size=size, shuffle=False, verbose=0, epochs=epochs, callbacks=callbacks)
    return model, history.history


@ranks(2)
def test_all_begin_from_the_root() -> None:
    model = training.make_model(seed=hvd.rank() + 1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 + hvd.rank(), momentum=0.9))
    train([hvd.callbacks.BroadcastGlobalVariablesCallback(0)], model=model, optimizer=optimizer)
    training.check_equal(model, training.serial())


class Late(keras.Model):
    """Built by its first batch."""

    compute_loss = training.Net.compute_loss

    def __init__(self) -> None:
        super().__init__()
        self.inner = [keras.layers.Conv2D(5, 8), keras.layers.Flatten()]

    def call(self, inputs):
        for layer in self.inner:
            inputs = layer(inputs)
        return inputs


def late(seed: int) -> Late:
    keras.utils.set_random_seed(seed)
    return Late()


@ranks(2)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_model_built_by_its_first_batch_begins_from_the_root(resumed: bool) -> None:
    """resumed: the root has built its model before."""
    expected, x = late(seed=1), training.data()[0]
    training.fit(training.compiled(expected, training.sgd()), x, training.data()[1], training.SAMPLES)
    model = late(seed=hvd.rank())
    if resumed and hvd.rank() == 1:
        model(x[:1])
    train([hvd.callbacks.BroadcastGlobalVariablesCallback(1)], model=model)
    training.check_equal(model, expected)


@ranks(2)
def test_a_model_whose_variables_the_step_makes_gets_the_roots() -> None:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=2, verbose=0, callbacks=callbacks)
    hvd.check_parameters(model.weights)


@ranks(2)
def test_local_variables_stay() -> None:
    model = training.make_model(seed=hvd.rank() + 1)
    kept = model.trainable_variables[0]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    optimizer.register_local_var(kept)
    before = keras.ops.convert_to_numpy(kept)
    train([hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kept])], model=model, optimizer=optimizer)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(kept), before)
    other = keras.ops.convert_to_numpy(model.trainable_variables[2])
    assert len({part.tobytes() for part in allgather_object(other)}) == 1


@ranks(2)
def test_unequal_numbers_of_batches_are_refused_at_once() -> None:
    model = training.compiled(training.make_model(), hvd.DistributedOptimizer(training.sgd()))
    x, y = training.data()
    count = (10 + hvd.rank()) * 4
    with pytest.raises(ValueError, match=r"different numbers of batches in an epoch: \[10, 11\].*steps_per_epoch=10"):
        training.fit(model, x[:count], y[:count], 4, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@ranks(2)
def test_metrics_are_averaged() -> None:
    _, history = train([hvd.callbacks.MetricAverageCallback()], epochs=2)
    expected = training.compiled(training.make_model(), training.sgd())
    x, y = training.data()
    losses = training.fit(expected, x, y, training.SAMPLES, epochs=2)
    assert history["loss"] == pytest.approx(losses, rel=1e-6)
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"a": 1.0 * hvd.rank(), "b": 2, "end": sys.float_info.max}
    callback.on_epoch_end(0, logs)
    assert logs == {"a": (hvd.size() - 1) / 2, "b": 2.0, "end": sys.float_info.max}
    with pytest.raises(ValueError, match=r"different metrics at the end of epoch 3.*rank 0: a; rank 1: b"):
        callback.on_epoch_end(3, {"a" if hvd.rank() == 0 else "b": 1.0})


@ranks(2)
def test_learning_rates(capsys) -> None:
    model = training.compiled(training.make_model(), hvd.DistributedOptimizer(training.sgd()))
    x, y = map(training.own, training.data())

    def rates(callback) -> list[float]:
        options = {"batch_size": training.SAMPLES // hvd.size(), "shuffle": False, "verbose": 0}
        return model.fit(x, y, epochs=4, callbacks=[callback], **options).history["lr"]

    schedule, warmup = hvd.callbacks.LearningRateScheduleCallback, hvd.callbacks.LearningRateWarmupCallback
    assert rates(schedule(0.1, 0.5, start_epoch=1)) == pytest.approx([0.1, 0.1, 0.05, 0.025])
    assert rates(schedule(0.1, lambda epoch: 2.0, end_epoch=2)) == pytest.approx([0.2] * 4)
    assert rates(warmup(0.2, warmup_epochs=2, verbose=1)) == pytest.approx([0.15, 0.2, 0.2, 0.2])
    said = "Epoch 2: finished gradual learning rate warmup to 0.2."
    assert capsys.readouterr().out.count(said) == (hvd.rank() == 0)
    for wrong, complaint in (
        (lambda: schedule(None, 0.5), "initial_lr"),
        (lambda: schedule("a", 0.5), "initial_lr must be a number, got 'a'"),
        (lambda: schedule(0.1, 0.5, start_epoch="a"), "start_epoch must be a number that is not negative, got 'a'"),
        (lambda: warmup(0.1, warmup_epochs=-1), "warmup_epochs must be a number that is not negative, got -1"),
        (lambda: warmup(0.1, steps_per_epoch=-1), "steps_per_epoch must be a number that is not negative, got -1"),
        (lambda: hvd.broadcast_variables(None, 0), "must be a list of variables, got NoneType None"),
        (lambda: hvd.check_parameters(keras.Variable(1.0)), "must be a list of variables, got "),
        (lambda: hvd.check_parameters([keras.Variable(1.0), 2.0]), r"variables\[1\] must be a variable, got float 2.0"),
        (lambda: hvd.broadcast_variables([None], 0), r"variables\[0\] must be a variable, got NoneType None"),
    ):
        with pytest.raises(ValueError, match=complaint):
            wrong()


@ranks(2)
def test_momentum_follows_the_learning_rate() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    variable = keras.Variable(np.zeros(2))
    optimizer.apply([keras.ops.ones((2,), "float64")], [variable])
    model = training.make_model()
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 2.0)
    callback.set_model(training.compiled(model, optimizer))
    callback.on_epoch_begin(0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(optimizer.momentums[0]), -0.2, rtol=1e-6)


@ranks(2)
@pytest.mark.parametrize("way", ["compile", "outside", "inside"])
def test_an_infinity_of_one_rank_skips_the_step_of_all(way: str) -> None:
    inner = keras.optimizers.SGD(1.0)
    scaled = keras.optimizers.LossScaleOptimizer
    if way == "compile":
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        model.compile(hvd.DistributedOptimizer(inner), loss="mse")
        optimizer = model.optimizer
        assert isinstance(optimizer, scaled)
    elif way == "outside":
        optimizer = hvd.DistributedOptimizer(scaled(inner))
    else:
        optimizer = scaled(hvd.DistributedOptimizer(inner))
    variable = keras.Variable(np.zeros(2), dtype="float32")
    optimizer.build([variable])
    scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    bad = np.array([np.inf if hvd.rank() == 1 else 1.0, 1.0], dtype="float32")
    optimizer.apply([keras.ops.convert_to_tensor(bad)], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [0.0, 0.0]
    assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == scale / 2
    good = np.array([1.0, 2.0], dtype="float32") * (hvd.rank() + 1) * scale / 2
    optimizer.apply([keras.ops.convert_to_tensor(good)], [variable])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [-1.5, -3.0])


@ranks(2)
def test_files_open_without_sirtaki_and_train_on_with_sirtaki(tmp_path) -> None:
    model, _ = train([])
    path = tmp_path / f"model{hvd.rank()}.keras"
    model.save(path)
    assert b"sirtaki" not in path.read_bytes()
    custom = {"Net": training.Net}
    plain = keras.saving.load_model(path, custom_objects=custom)
    assert not hasattr(type(plain.optimizer), "_sirtaki_options")
    assert type(plain.optimizer).__name__ == "SGD" and plain.optimizer.get_config() == model.optimizer.get_config()
    again = hvd.load_model(path, custom_objects=custom)
    for one, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))
    x, y = map(training.own, training.data())
    for each in (model, again):
        training.fit(each, x, y, training.SAMPLES // hvd.size())
    training.check_equal(again, model)


WITHOUT_US = """
import sys
sys.modules["sirtaki"] = None  # as if it were not installed
import keras, numpy
model = keras.saving.load_model(sys.argv[1])
before = int(model.optimizer.iterations)
model.fit(numpy.ones((4, 3)), numpy.ones((4, 1)), batch_size=4, verbose=0)
print(type(model.optimizer).__name__, before, int(model.optimizer.iterations))
"""


@pytest.mark.long
@ranks(2, backends=["tensorflow"])
def test_a_process_without_sirtaki_opens_and_trains_the_model(tmp_path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), loss="mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)
    if hvd.rank() == 0:
        path = tmp_path / "model.keras"
        model.save(path)
        command = [sys.executable, "-c", WITHOUT_US, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.stdout.split() == ["Adam", "1", "2"], ended.stderr
    hvd.barrier()


@ranks(2)
@pytest.mark.filterwarnings("error:the loaded optimizer")
def test_loaded_accumulation_keeps_its_meaning(tmp_path) -> None:
    passes = {"backward_passes_per_step": 2}
    path, custom = tmp_path / f"model{hvd.rank()}.keras", {"Net": training.Net}
    model, _ = train([], optimizer=hvd.DistributedOptimizer(training.sgd(), **passes))
    model.save(path)
    again = hvd.load_model(path, custom_objects=custom, **passes)
    x, y = map(training.own, training.data(4))
    for each in (model, again):
        training.fit(each, x, y, training.SAMPLES // hvd.size())
    training.check_equal(again, model)
    with pytest.warns(UserWarning, match="averages 2 gradients.*backward_passes_per_step=2"):
        hvd.load_model(path, custom_objects=custom)
    with pytest.raises(ValueError, match="not both; got 3 and 2"):
        hvd.load_model(path, custom_objects=custom, backward_passes_per_step=3)


@ranks(2)
def test_copies_without_their_local_variables_warn() -> None:
    variable = keras.Variable(np.zeros(1))
    local = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    local.register_local_var(variable)
    for optimizer in (local, hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[variable]])):
        for duplicate in (copy.deepcopy, pickle.dumps, lambda made: type(made).from_config(made.get_config())):
            with pytest.warns(UserWarning, match="a distributed SGD does not contain local variables and groups"):
                duplicate(optimizer)


@ranks(2)
def test_copies_stay_distributed() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
    assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, keras.optimizers.SGD)
    for again in (type(optimizer).from_config(optimizer.get_config()), pickle.loads(pickle.dumps(optimizer))):
        variable = keras.Variable(np.zeros(1))
        again.apply([keras.ops.ones((1,), "float64") * hvd.rank()], [variable])
        assert keras.ops.convert_to_numpy(variable).tolist() == [-0.5]
        assert again.get_config() == optimizer.get_config()


@ranks(2)
def test_optimizers_that_go_past_the_reduction_are_refused() -> None:
    class Own(keras.optimizers.SGD):
        def _clip_gradients(self, grads):
            return grads

        def _backend_apply_gradients(self, grads, trainable_variables):
            self._backend_update_step(grads, trainable_variables, self.learning_rate)

    class Through(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            return super().apply([2.0 * g for g in grads], trainable_variables)

    variable = keras.Variable(np.zeros(1))
    gradient = keras.ops.ones((1,), "float64") * hvd.rank()
    with pytest.raises(RuntimeError, match="Own updates variables without"):
        hvd.DistributedOptimizer(Own(1.0)).apply([gradient], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [0.0]
    hvd.DistributedOptimizer(Through(1.0)).apply([gradient], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [-1.0]


@ranks(2)
def test_xla_is_left_off_and_explained(caplog, monkeypatch, keras_backend: str) -> None:
    model = training.make_model()
    training.compiled(model, keras.optimizers.SGD(), jit_compile=True)
    assert model.jit_compile
    with caplog.at_level("WARNING", "sirtaki.keras"):
        training.compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD()), jit_compile=True)
        assert not model.jit_compile
    assert "XLA cannot compile the collectives" in caplog.text
    if keras_backend == "tensorflow":
        import tensorflow as tf

        class Gpu:
            device_type = "GPU"

        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [Gpu()])
        training.compiled(model, keras.optimizers.SGD(), jit_compile="auto")
        assert model.jit_compile  # so that the next lines tell something
        training.compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD()), jit_compile="auto")
        assert not model.jit_compile


@ranks(2)
def test_modules_have_horovods_names(keras_backend: str) -> None:
    if keras_backend == "torch":
        with pytest.raises(ImportError, match="needs KERAS_BACKEND=tensorflow"):
            importlib.import_module("sirtaki.tensorflow.keras.callbacks")
        return
    from sirtaki.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback

    assert BroadcastGlobalVariablesCallback is hvd.callbacks.BroadcastGlobalVariablesCallback
    from sirtaki.tensorflow.keras.elastic import KerasState

    assert KerasState is hvd.elastic.KerasState


@ranks(2, 3)
def test_collectives_of_values(rank_count: int) -> None:
    """Numbers, arrays, tensors and variables; the results are the backend's tensors."""
    rank = hvd.rank()
    for value in (
        1.0 + rank,
        np.float32(1 + rank),
        keras.ops.convert_to_tensor(1.0 + rank),
        keras.Variable(1.0 + rank),
    ):
        mean = hvd.allreduce(value)
        assert keras.ops.is_tensor(mean) and mean.numpy() == (rank_count + 1) / 2
    results = {
        "allreduce": (hvd.allreduce(np.array([rank + 1]), op=hvd.Sum), [sum(range(1, rank_count + 1))]),
        "allgather": (
            hvd.allgather(np.full((rank + 1, 1), rank)),
            [[r] for r in range(rank_count) for _ in range(r + 1)],
        ),
        "broadcast": (hvd.broadcast(np.array([rank, 7.5]), 1), [1.0, 7.5]),
        "reducescatter": (hvd.reducescatter(np.ones(rank_count), op=hvd.Sum), [rank_count]),
    }
    for what, (result, expected) in results.items():
        assert keras.ops.is_tensor(result) and result.numpy().tolist() == expected, what


@ranks(2)
def test_functions() -> None:
    rank = hvd.rank()
    assert hvd.allgather_object(("rank", rank)) == [("rank", 0), ("rank", 1)]
    assert hvd.broadcast_object([rank], 1) == [1]
    hvd.barrier()
    hvd.check_parameters([keras.Variable(1.0)])
    with pytest.raises(hvd.HorovodInternalError, match="is not the same on all ranks"):
        hvd.check_parameters([keras.Variable(1.0 * rank)])
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(ValueError, match="different numbers of variables"):
        hvd.broadcast_variables([keras.Variable(1.0)] * (rank + 1), 0)


@ranks(2)
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"op": 3}, "op currently only supports Average and Sum, got Min"),
        ({"op": 2}, "got Adasum"),
        ({"gradient_predivide_factor": 0}, "must be a positive number, got 0"),
        ({"gradient_predivide_factor": 2.0, "op": 1}, "not supported with op != Average"),
        ({"backward_passes_per_step": 0}, "must be > 0, got 0"),
        ({"groups": -1}, "non-negative integer"),
        ({"groups": [[1]]}, "groups must consist of variables, got int 1"),
        ({"compression": 4}, "compression must have"),
        ({"process_set": 5}, "process_set must be a ProcessSet, got 5"),
        ({"device_dense": 5}, "device_dense must be a string, got 5; pass the arguments after it by keyword"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), **arguments)
    with pytest.raises(ValueError, match=r"must be a keras\.optimizers.Optimizer, got str 'adam'"):
        hvd.DistributedOptimizer("adam")
    with pytest.raises(ValueError, match="the model must be built first"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
