"""Keras 2 (tf_keras): every way of training equals a serial run on the joined batches."""

import copy
import functools
import gc
import weakref

import keras2_training as training
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ranks import ranks

import sirtaki.keras
import sirtaki.tensorflow.keras as hvd
from sirtaki.keras import generations
from sirtaki.keras.attachment import attachment_of
from sirtaki.keras.distributed import is_distributed

NEW, LEGACY = keras.optimizers, keras.optimizers.legacy
KINDS = {"new": NEW, "legacy": LEGACY}
ONE_QUICKLY = ["new", pytest.param("legacy", marks=pytest.mark.long)]  # where a test is slow


def momentum(kind=NEW, **options):
    return kind.SGD(0.1, momentum=0.9, **options)


@functools.cache
def serial(kind: str, momentum: float = 0.9) -> keras.Model:
    return training.serial(lambda: KINDS[kind].SGD(0.1, momentum=momentum))


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_fit_equals_serial(kind: str) -> None:
    case = {"global_clipnorm": 0.05}
    if kind == "new":
        case |= {"use_ema": True, "ema_overwrite_frequency": 2, "weight_decay": 0.01}
    make = lambda: momentum(KINDS[kind], **case)  # noqa: E731
    training.check_equal(training.trained(hvd.DistributedOptimizer(make())), training.serial(make))


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_all_optimizers_equal_serial(kind: str) -> None:
    """Three steps of apply_gradients."""
    names = ["Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD"]
    names += ["AdamW", "Lion", "Adafactor"] * (kind == "new")
    clips = ({}, {"clipnorm": 0.3}, {"global_clipnorm": 0.3}, {"clipvalue": 0.3})
    cases = [(name, clip) for name in names for clip in (clips if name == "SGD" else clips[:1])]
    grads = np.random.default_rng(0).standard_normal((3, hvd.size(), 2, 3))
    for name, clip in cases:
        made = [getattr(KINDS[kind], name)(0.01, **clip) for _ in range(2)]
        model, expected = (tf.Variable(np.ones((2, 3))) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(made[0])
        for step in grads:
            optimizer.apply_gradients([(tf.constant(step[hvd.rank()]), model)])
            made[1].apply_gradients([(tf.constant(step.mean(0)), expected)])
        np.testing.assert_allclose(model.numpy(), expected.numpy(), atol=1e-10, err_msg=name)
        assert np.abs(model.numpy() - 1).max() > 1e-6


class Custom(keras.Sequential):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss}


@ranks(2)
@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_other_ways_equal_serial(kind: str) -> None:
    """train_step, apply_gradients, minimize, aggregate_gradients, run_eagerly, steps_per_execution."""
    make = lambda: momentum(KINDS[kind])  # noqa: E731
    expected = serial(kind)
    for case in ({"cls": Custom}, {"run_eagerly": True}, {"steps_per_execution": 5}):
        training.check_equal(training.trained(hvd.DistributedOptimizer(make()), **case), expected)
    ways = ["apply", "minimize", "graph"] + ["aggregate"] * (kind == "new")
    x, y = map(training.own, training.data())
    size = training.SAMPLES // hvd.size()
    for way in ways:
        model, optimizer = training.make_model(), hvd.DistributedOptimizer(make())
        for step in range(training.STEPS):
            part = slice(step * size, (step + 1) * size)
            one_step(way, model, optimizer, x[part], y[part])
        training.check_equal(model, expected)


def one_step(way: str, model, optimizer, x, y) -> None:
    variables = model.trainable_variables
    if way == "minimize":
        optimizer.minimize(lambda: tf.reduce_mean(tf.square(model(x) - y)), variables)
        return
    pairs = list(zip(training.gradients(model, x, y), variables, strict=True))
    if way == "apply":
        optimizer.apply_gradients(iter(pairs))
    elif way == "graph":
        apply_in(True, optimizer, pairs)
    else:
        optimizer.apply_gradients(optimizer.aggregate_gradients(pairs), skip_gradients_aggregation=True)


def apply_in(graph: bool, optimizer, pairs: list) -> None:
    def apply() -> None:
        optimizer.apply_gradients(pairs)

    (tf.function(apply) if graph else apply)()


@ranks(2)
@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_options(kind: str) -> None:
    sgd = KINDS[kind].SGD
    expected = serial(kind, momentum=0.0)
    for options in ({"groups": 2, "op": hvd.Sum}, {"gradient_predivide_factor": 4.0, "name": "mine"}):
        rate = 0.1 / hvd.size() if options.get("op") == hvd.Sum else 0.1
        training.check_equal(training.trained(hvd.DistributedOptimizer(sgd(rate), **options)), expected)
    average = kind == "new"  # two passes on halves of a batch are one step on the whole
    optimizer = hvd.DistributedOptimizer(
        sgd(0.1 if average else 0.05), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    training.check_equal(training.trained(optimizer, passes=2), expected)
    assert int(optimizer.iterations) == training.STEPS


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_some_ranks_and_local_variables(kind: str) -> None:
    """One that rank 1 has not, one that nobody has, slices and None, a local variable; in a copy too."""
    for graph in (False, True):
        partly, nobody, table, local = (tf.Variable(tf.zeros([2, 1])) for _ in range(4))
        optimizer = hvd.DistributedOptimizer(KINDS[kind].SGD(1.0))
        optimizer.register_local_var(local)
        if kind == "legacy":  # others cannot be copied
            optimizer = copy.deepcopy(optimizer)
        slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]), tf.constant([2, 1]))
        own = tf.ones([2, 1]) * (hvd.rank() + 1)
        grads = [tf.ones([2, 1]), None, None, own] if hvd.rank() == 0 else [None, None, slices, own]
        apply_in(graph, optimizer, list(zip(grads, (partly, nobody, table, local), strict=True)))
        values = [v.numpy().ravel().tolist() for v in (partly, nobody, table, local)]
        assert values == [[-0.5, -0.5], [0, 0], [0, -0.5], [-0.5 * (hvd.rank() + 1)] * 2]


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_local_layers(kind: str) -> None:
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
    with pytest.raises(ValueError, match="has not been built"):
        hvd.PartialDistributedOptimizer(KINDS[kind].SGD(1.0), local_layers=layers[0])
    for layer in layers:
        layer.build((None, 1))
    for scale in (True, False):
        optimizer = hvd.PartialDistributedOptimizer(
            KINDS[kind].SGD(1.0), local_layers=layers[0], scale_local_gradients=scale
        )
        for layer in layers:
            layer.kernel.assign([[0.0]])
        gradient = tf.constant([[hvd.rank() + 1.0]], tf.float64)
        optimizer.apply_gradients([(gradient, layer.kernel) for layer in layers])
        own = (hvd.rank() + 1) / (2 if scale else 1)
        assert [float(layer.kernel[0, 0]) for layer in layers] == [-own, -1.5]


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_16_bit_gradients_are_averaged_in_32_bits(kind: str) -> None:
    """C44: 60000 + 60000 is beyond float16."""
    for graph in (False, True):
        variable = tf.Variable(tf.zeros([2], tf.float16))
        optimizer = hvd.DistributedOptimizer(KINDS[kind].SGD(1.0))
        apply_in(graph, optimizer, [(tf.constant([60000.0, 60000.0], tf.float16), variable)])
        assert variable.numpy().tolist() == [-60000.0, -60000.0]


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["compile", "outside", "inside"])
def test_an_infinity_of_one_rank_skips_the_step_of_all(kind: str, way: str) -> None:
    inner, scaled = KINDS[kind].SGD(1.0), keras.mixed_precision.LossScaleOptimizer
    if way == "compile":
        layer = keras.layers.Dense(1, dtype="mixed_float16", input_shape=(2,))
        model = keras.Sequential([layer])
        model._set_dtype_policy("mixed_float16")
        model.compile(hvd.DistributedOptimizer(inner), loss="mse")
        optimizer = model.optimizer
        assert isinstance(optimizer, scaled)
    elif way == "outside":
        optimizer = hvd.DistributedOptimizer(scaled(inner))
    else:
        optimizer = scaled(hvd.DistributedOptimizer(inner))
    variable = tf.Variable([0.0, 0.0])
    scale = float(optimizer.loss_scale)
    for graph in (False, True):
        variable.assign([0.0, 0.0])
        apply_in(graph, optimizer, [(tf.constant([np.inf if hvd.rank() == 1 else 1.0, 1.0]), variable)])
        assert variable.numpy().tolist() == [0.0, 0.0]
        scale /= 2
        assert float(optimizer.loss_scale) == scale
        apply_in(graph, optimizer, [(tf.constant([1.0, 2.0]) * (hvd.rank() + 1), variable)])
        assert variable.numpy().tolist() == [-1.5, -3.0]


@pytest.mark.long
@ranks(2)
def test_whole_training_in_mixed_precision() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = training.trained(hvd.DistributedOptimizer(momentum()))
        assert isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer)
        training.check_equal(model, training.serial(momentum), tolerance=0.02)
    finally:
        keras.mixed_precision.set_global_policy("float64")


@ranks(2)
@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_files_open_without_sirtaki_and_train_on_with_sirtaki(kind: str, tmp_path) -> None:
    """As far as Keras 2 keeps optimizers' state: HDF5 does, .keras does for the new classes, SavedModel does not."""
    model = training.trained(hvd.DistributedOptimizer(momentum(KINDS[kind])))
    for ending in (".keras", "") if kind == "new" else (".h5",):
        path = tmp_path / f"{hvd.rank()}{ending}"
        model.save(path, **({} if ending else {"save_format": "tf"}))
        for file in [path] if ending else path.rglob("*"):
            assert file.is_dir() or b"sirtaki" not in file.read_bytes(), file
        plain, again = keras.models.load_model(path), hvd.load_model(path)
        assert type(plain.optimizer) is KINDS[kind].SGD
        assert type(again.optimizer) is not KINDS[kind].SGD and isinstance(again.optimizer, KINDS[kind].SGD)
        assert plain.optimizer.get_config() == again.optimizer.get_config() == model.optimizer.get_config()
        if ending:
            training.fit(plain, *training.data(), training.SAMPLES)
            training.fit(again, *map(training.own, training.data()), training.SAMPLES // hvd.size())
            training.check_equal(again, plain)


class Late(keras.Model):
    """Built by its first batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.inner = [keras.layers.Flatten(), keras.layers.Dense(5)]

    def call(self, inputs):
        for layer in self.inner:
            inputs = layer(inputs)
        return inputs


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_built_by_its_first_batch_begins_from_the_root(kind: str) -> None:
    expected = training.compiled(Late(1), momentum(KINDS[kind]))
    training.fit(expected, *training.data(), training.SAMPLES)
    model = training.compiled(Late(hvd.rank()), hvd.DistributedOptimizer(momentum(KINDS[kind])))
    fit_own(model, [hvd.callbacks.BroadcastGlobalVariablesCallback(1)])
    training.check_equal(model, expected)


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_callbacks(kind: str, capfd) -> None:
    callbacks = hvd.callbacks
    model = training.make_model(seed=hvd.rank() + 1)
    optimizer = KINDS[kind].SGD(0.1 + hvd.rank(), momentum=0.9)
    every = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
    x, y = training.data()
    losses = fit_own(training.compiled(model, hvd.DistributedOptimizer(optimizer)), every)["loss"]
    expected = training.compiled(training.make_model(), momentum(KINDS[kind]))
    assert losses == pytest.approx(training.fit(expected, x, y, training.SAMPLES)["loss"], rel=1e-6)
    training.check_equal(model, expected)

    schedule, warmup = callbacks.LearningRateScheduleCallback, callbacks.LearningRateWarmupCallback
    assert fit_own(model, [schedule(0.1, 0.5, start_epoch=1)], epochs=3)["lr"] == pytest.approx([0.1, 0.1, 0.05])
    assert fit_own(model, [warmup(0.2, warmup_epochs=2)], epochs=3)["lr"] == pytest.approx([0.15, 0.2, 0.2])

    variable, fresh = tf.Variable([0.0, 0.0]), hvd.DistributedOptimizer(KINDS[kind].SGD(0.1, momentum=0.9))
    fresh.apply_gradients([(tf.ones([2]), variable)])
    doubling = schedule(0.1, lambda epoch: 2.0)
    doubling.set_model(training.compiled(training.make_model(), fresh))
    doubling.on_epoch_begin(0)
    velocity = fresh.momentums[0] if kind == "new" else fresh.get_slot(variable, "momentum")
    np.testing.assert_allclose(velocity, [-0.2, -0.2], rtol=1e-6)

    best = callbacks.BestModelCheckpoint()
    with pytest.raises(ValueError, match="no filepath"):
        fit_own(model, [best])
    with pytest.raises(ValueError, match=r"different numbers of batches in an epoch: \[4, 5\]"):
        count = training.SAMPLES // hvd.size() * (4 + hvd.rank())
        training.fit(model, x[:count], y[:count], training.SAMPLES // hvd.size(), callbacks=every)


def fit_own(model, callbacks: list, epochs: int = 1) -> dict[str, list[float]]:
    x, y = map(training.own, training.data())
    return training.fit(model, x, y, training.SAMPLES // hvd.size(), epochs=epochs, callbacks=callbacks)


@ranks(2)
def test_xla(caplog) -> None:
    """The train step is not compiled, and said so; the optimizer's updates are."""
    optimizer = momentum()
    optimizer.jit_compile = True
    with caplog.at_level("WARNING", "sirtaki.keras"):
        model = training.trained(hvd.DistributedOptimizer(optimizer), jit_compile=True)
    assert "XLA cannot compile the collectives" in caplog.text
    assert optimizer.jit_compile
    training.check_equal(model, serial("new"))


@ranks(2)
def test_gradients_that_would_not_be_reduced_are_refused() -> None:
    with pytest.raises(ValueError, match="optimizers of TensorFlow 1 and Keras 2 make their state as whole"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), shard_optimizer_state=True)
    variable, gradient = tf.Variable([0.0]), tf.constant([1.0 + hvd.rank()])
    new, legacy = (hvd.DistributedOptimizer(kind.SGD(1.0)) for kind in (NEW, LEGACY))
    scaled = hvd.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(NEW.SGD(1.0)))
    for optimizer, arguments in [
        (new, {"skip_gradients_aggregation": True}),
        (new, {"experimental_aggregate_gradients": False}),
        (scaled, {"skip_gradients_aggregation": True}),
        (legacy, {"experimental_aggregate_gradients": False}),
    ]:
        with pytest.raises(RuntimeError, match="each rank would apply its own gradients"):
            optimizer.apply_gradients([(gradient, variable)], **arguments)
    new.build([variable])
    with pytest.raises(RuntimeError, match="without passing through apply_gradients"):
        new.update_step(gradient, variable)
    with pytest.raises(RuntimeError, match="backward_passes_per_step=2"):
        hvd.DistributedOptimizer(NEW.SGD(1.0), backward_passes_per_step=2).aggregate_gradients([(gradient, variable)])
    with pytest.raises(ValueError, match="unset it for Keras 3"):
        hvd.DistributedOptimizer(type("SGD", (), {"__module__": "keras.src.optimizers.sgd"})())
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)
    assert variable.numpy().tolist() == [0.0]
    # Horovod's two functions have their arguments in different orders.
    assert sirtaki.keras.DistributedOptimizer is not hvd.DistributedOptimizer
    assert sirtaki.keras.broadcast_global_variables is hvd.broadcast_global_variables


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_alone(kind: str) -> None:
    """Passes are added up all the same; after shutdown() there is nobody to reduce with."""
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        KINDS[kind].SGD(1.0), backward_passes_per_step=2, process_set=alone[hvd.rank()]
    )
    for gradient in (1.0, 3.0):
        optimizer.apply_gradients([(tf.constant([gradient]), variable)])
    assert variable.numpy().tolist() == [-4.0]
    optimizer = hvd.DistributedOptimizer(KINDS[kind].SGD(1.0))
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError, match=r"shut down.*would not be reduced"):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy().tolist() == [-4.0]


@ranks(2)
def test_an_environment_variable_that_is_set_too_late_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(keras, "Model", object)  # as if tf.keras were another Keras
    with pytest.raises(ImportError, match="was set after TensorFlow had been imported"):
        generations._keras_2()


@ranks(2)
def test_functions_and_copies() -> None:
    assert is_distributed(sirtaki.tensorflow.DistributedOptimizer(LEGACY.SGD(1.0)))
    assert hvd.allreduce(1.0 + hvd.rank()).numpy() == 1.5
    assert hvd.broadcast(tf.Variable([1.0 * hvd.rank()]), 1).numpy().tolist() == [1.0]
    optimizer = hvd.DistributedOptimizer(NEW.SGD(1.0))
    again = type(optimizer).from_config(optimizer.get_config())
    variable = tf.Variable([1.0 + hvd.rank()])
    hvd.broadcast_variables([variable], 0)
    again.apply_gradients([(tf.constant([1.0 * hvd.rank()]), variable)])
    assert variable.numpy().tolist() == [0.5]


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_wrapping_anew_each_step_leaves_nothing_behind(kind: str) -> None:
    """C73."""
    variable, base = tf.Variable([0.0]), KINDS[kind].SGD(1.0)
    classes, attachments = set(), []
    for _ in range(20):
        optimizer = hvd.DistributedOptimizer(base)
        optimizer.apply_gradients([(tf.constant([1.0 + hvd.rank()]), variable)])
        classes.add(type(optimizer))
        attachments.append(weakref.ref(attachment_of(optimizer)))
    gc.collect()
    assert len(classes) == 1 and [ref() is not None for ref in attachments] == [False] * 19 + [True]
    assert variable.numpy().tolist() == [-30.0]


@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_drift_is_found(kind: str, monkeypatch) -> None:
    monkeypatch.setenv("SIRTAKI_CHECK_PARAMETERS", "2")
    for graph, error in ((False, hvd.HorovodInternalError), (True, tf.errors.UnknownError)):
        good, bad = tf.Variable([0.0], name="good"), tf.Variable([0.0], name="bad")
        optimizer = hvd.DistributedOptimizer(KINDS[kind].SGD(1.0))
        pairs = [(tf.constant([1.0 + hvd.rank()]), variable) for variable in (good, bad)]
        apply_in(graph, optimizer, pairs)
        apply_in(graph, optimizer, pairs)
        bad.assign_add([1.0 * hvd.rank()])
        apply_in(graph, optimizer, pairs)
        with pytest.raises(error, match=r"after step 4 the parameter bad:0 of shape \(1,\)"):
            apply_in(graph, optimizer, pairs)
