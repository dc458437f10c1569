"""Every way of training with a distributed Keras optimizer equals a serial run on the joined batches."""

import keras
import keras_training as training
import numpy as np
import pytest
from ranks import ranks

import sirtaki.keras as hvd
from sirtaki.exchange import allgather_object
from sirtaki.native import core

CASES = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "all at once": {
        "clipnorm": 0.05,
        "weight_decay": 0.01,
        "loss_scale_factor": 8.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
}


@ranks(2)
@pytest.mark.parametrize("case", CASES)
def test_fit_equals_serial(case: str) -> None:
    check_fit(case)


@pytest.mark.long
@ranks(3, backends=["tensorflow"])
def test_fit_on_three_ranks() -> None:
    check_fit("accumulation")


def check_fit(case: str) -> None:
    make = lambda: training.sgd(**CASES[case])  # noqa: E731
    counted = core.step_times()["steps"]
    training.check_equal(training.trained(hvd.DistributedOptimizer(make())), training.serial(make))
    assert core.step_times()["steps"] > counted  # each step is announced


@ranks(2)
@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2, "op": hvd.Sum, "name": "mine"},
        {"groups": 1, "gradient_predivide_factor": 4.0, "sparse_as_dense": True},
    ],
    ids=str,
)
def test_options(options: dict) -> None:
    rate = 0.1 / hvd.size() if options.get("op") == hvd.Sum else 0.1
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate), **options)
    training.check_equal(training.trained(optimizer), training.serial(training.plain_sgd))


OPTIMIZERS = ["Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam"]
OPTIMIZERS += ["RMSprop", "SGD"]


@ranks(2)
@pytest.mark.filterwarnings("ignore:.*Muon")
def test_all_optimizers_equal_serial() -> None:
    """Three updates by apply(); SGD with every kind of clipping."""
    clips: list[dict] = [{}, {"clipnorm": 0.3}, {"global_clipnorm": 0.3}, {"clipvalue": 0.3}]
    parts = np.random.default_rng(0).standard_normal((3, hvd.size(), 2, 3))
    for name, clip in [*((name, {}) for name in OPTIMIZERS), *(("SGD", clip) for clip in clips)]:
        made = [getattr(keras.optimizers, name)(0.01, **clip) for _ in range(2)]
        one, other = (keras.Variable(np.ones((2, 3))) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(made[0])
        for part in parts:
            optimizer.apply([keras.ops.convert_to_tensor(part[hvd.rank()])], [one])
            made[1].apply([keras.ops.convert_to_tensor(part.mean(0))], [other])
        values = [keras.ops.convert_to_numpy(variable) for variable in (one, other)]
        np.testing.assert_allclose(*values, atol=1e-10, err_msg=f"{name} {clip}")
        assert np.abs(values[0] - 1).max() > 1e-6, name


@ranks(2)
def test_groups_of_variables() -> None:
    model = training.make_model()
    variables = model.trainable_variables
    optimizer = hvd.DistributedOptimizer(training.sgd(), groups=[[variables[0], variables[3]], [variables[1]]])
    training.compiled(model, optimizer)
    x, y = training.data()
    training.fit(model, training.own(x), training.own(y), training.SAMPLES // hvd.size())
    training.check_equal(model, training.serial())


@ranks(2)
@pytest.mark.parametrize("way", ["apply", "apply_gradients", "train_step"])
def test_other_ways_equal_serial(way: str) -> None:
    model, optimizer = training.make_model(), hvd.DistributedOptimizer(training.sgd())
    x, y = map(training.own, training.data())
    size = training.SAMPLES // hvd.size()

    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = model

        def call(self, inputs):
            return self.inner(inputs)

        def train_step(self, batch):
            x, y = batch
            gradients = training.loss_and_gradients(self, x, y)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": keras.ops.mean(y)}

    if way == "train_step":
        custom = Custom()
        custom.compile(optimizer)
        custom.fit(x, y, batch_size=size, shuffle=False, verbose=0)
    else:
        for step in range(training.STEPS):
            part = slice(step * size, (step + 1) * size)
            gradients = training.loss_and_gradients(model, x[part], y[part])
            if way == "apply":
                optimizer.apply(gradients, model.trainable_variables)
            else:
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    training.check_equal(model, training.serial())


@ranks(2)
@pytest.mark.parametrize("average", [True, False])
def test_backward_passes(average: bool) -> None:
    """Two passes on halves of a batch are one step on the whole."""
    factor = 1.0 if average else 2.0
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1 / factor), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    model = training.compiled(training.make_model(), optimizer)
    x, y = map(training.own, training.data())
    training.fit(model, x, y, training.SAMPLES // hvd.size() // 2)
    training.check_equal(model, training.serial(training.plain_sgd))


@ranks(2)
@pytest.mark.parametrize("outer", [False, True])
def test_backward_passes_of_a_rank_alone(outer: bool) -> None:
    """Added up as by several ranks, in the set of one rank that each has for itself."""
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, process_set=alone[hvd.rank()]
    )
    if outer:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.ones(()))]
    variables[1].overwrite_with_gradient = True
    optimizer.build(variables)
    for gradient in (1.0, 3.0):
        gradients = [keras.ops.full((2,), gradient, "float64") * (2.0 if outer else 1.0)]
        optimizer.apply([*gradients, keras.ops.convert_to_tensor(np.float64(5.0))], variables)
    assert [keras.ops.convert_to_numpy(variable).tolist() for variable in variables] == [[-4.0, -4.0], 5.0]
    for own in alone:
        hvd.remove_process_set(own)


@ranks(2)
def test_a_removed_set_and_a_shut_down_job() -> None:
    """After the set was removed, and after shutdown()."""
    single = hvd.add_process_set([1])
    variable = keras.Variable(np.zeros(2))
    outer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), hvd.DistributedOptimizer(outer)]
    of_set = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=single)
    hvd.remove_process_set(single)
    gradient = keras.ops.ones((2,), "float64")
    with pytest.raises(ValueError, match="is not registered"):
        of_set.apply([gradient], [variable])
    hvd.shutdown()
    for optimizer in optimizers:
        with pytest.raises(hvd.HorovodInternalError, match=r"shut down.*would not be reduced"):
            optimizer.apply([gradient], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [0.0, 0.0]


@ranks(2, backends=["tensorflow"])
def test_a_step_that_was_compiled_by_a_rank_alone() -> None:
    """It reduces nothing, which is an error in a larger job; compiled again it does."""
    import tensorflow as tf

    rank = hvd.rank()
    hvd.shutdown()
    hvd.init(comm=[rank])
    model = training.compiled(training.make_model(), hvd.DistributedOptimizer(training.sgd()))
    x, y = (part[:4] * (1 + rank) for part in training.data())
    model.train_on_batch(x, y)
    hvd.shutdown()
    hvd.init()
    with pytest.raises(tf.errors.InvalidArgumentError, match="compiled by a rank alone"):
        model.train_on_batch(x, y)
    hvd.broadcast_variables([*model.weights, *model.optimizer.variables], 0)
    model.compile(model.optimizer, loss="mse")
    model.train_on_batch(x, y)
    training.check_same_on_ranks(model)


@ranks(2)
def test_several_steps_in_one_execution(keras_backend: str) -> None:
    if keras_backend == "torch":  # a limit of Keras
        with pytest.raises(ValueError, match="steps_per_execution"):
            training.trained(hvd.DistributedOptimizer(training.sgd()), steps_per_execution=5)
        return
    model = training.trained(hvd.DistributedOptimizer(training.sgd()), steps_per_execution=5)
    training.check_equal(model, training.serial())


@ranks(2)
def test_eagerly() -> None:
    model = training.trained(hvd.DistributedOptimizer(training.sgd()), run_eagerly=True)
    training.check_equal(model, training.serial())


class HalfUsed(keras.Model):
    """Uses one layer or the other, or neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (keras.layers.Dense(3, use_bias=False) for _ in range(3))
        self.built = True
        for layer in (self.first, self.second, self.last):
            layer.build((None, 3))

    def call(self, inputs, which=0):
        if which == 1:
            inputs = self.first(inputs)
        if which == 2:
            inputs = self.second(inputs)
        return self.last(inputs)


def half_used(seed: int = 3) -> HalfUsed:
    keras.utils.set_random_seed(seed)
    return HalfUsed()


def gradients_of(model: HalfUsed, which: int, x: np.ndarray) -> list:
    if keras.backend.backend() == "torch":
        model.zero_grad()
        keras.ops.sum(keras.ops.square(model(x, which=which))).backward()
        return [variable.value.grad for variable in model.trainable_variables]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x, which=which)))
    return tape.gradient(loss, [variable.value for variable in model.trainable_variables])


@ranks(2)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_unused_variables_count_as_zero() -> None:
    """Rank 0 uses the first layer, rank 1 the second; then neither does, then the second is frozen."""
    model, expected = half_used(), half_used()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    reference = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    reference.build(expected.trainable_variables)
    random = np.random.default_rng(0)
    for step in range(6):
        x = random.standard_normal((2, 4, 3))
        uses = [(1, 2), (0, 0), (1, 1)][step % 3]
        if step == 4:
            model.second.trainable = expected.second.trainable = False
        optimizer.apply(gradients_of(model, uses[hvd.rank()], x[hvd.rank()]), model.trainable_variables)
        parts = [[copy_of(g) for g in gradients_of(expected, uses[rank], x[rank])] for rank in range(2)]
        joined = [joined_gradient(a, b) for a, b in zip(*parts, strict=True)]
        reference.apply(joined, expected.trainable_variables)
    training.check_equal(model, expected)


def copy_of(gradient):
    return None if gradient is None else keras.ops.copy(gradient)


def joined_gradient(one, other):
    if one is None and other is None:
        return None
    return sum(part for part in (one, other) if part is not None) / 2


@ranks(2)
@pytest.mark.parametrize("scale", [True, False])
def test_local_variables_keep_their_own_gradients(scale: bool) -> None:
    model = training.make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.5), local_layers=model.layers[-2], scale_local_gradients=scale
    )
    kernel, bias = model.layers[-2].trainable_variables[0], model.layers[0].trainable_variables[1]
    before = [keras.ops.convert_to_numpy(variable) for variable in (kernel, bias)]
    gradients = [keras.ops.ones(v.shape, v.dtype) * (hvd.rank() + 1) for v in model.trainable_variables]
    optimizer.apply(gradients, model.trainable_variables)
    after = [keras.ops.convert_to_numpy(variable) for variable in (kernel, bias)]
    own = (hvd.rank() + 1) / (2 if scale else 1)
    np.testing.assert_allclose(before[0] - after[0], 0.5 * own)
    np.testing.assert_allclose(before[1] - after[1], 0.5 * 1.5)
    for wrong in (5, [kernel], keras.layers.Dense(2)):
        with pytest.raises(ValueError, match="local"):
            hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.5), local_layers=wrong)


def apply_in(graph: bool, optimizer: keras.Optimizer, gradients: list, variables: list) -> None:
    if not graph:
        optimizer.apply(gradients, variables)
        return
    import tensorflow as tf

    tf.function(lambda: optimizer.apply(gradients, variables))()


@ranks(2)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_local_variable_without_gradient_leaves_the_others_in_place(graph: bool, keras_backend: str) -> None:
    """Rank 1 has no gradient for the local variable before two that look alike."""
    variables = [keras.Variable(np.zeros(2)) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    with pytest.raises(ValueError, match="is not a variable of Keras"):
        optimizer.register_local_var(variables[0].value)
    with pytest.raises(ValueError, match=r"is not a variable of Keras|must consist of variables"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=[[variables[1].value]])
    optimizer.register_local_var(variables[0])
    gradients = [keras.ops.ones((2,), "float64") * factor * (2 * hvd.rank() + 1) for factor in (1, 1, 10)]
    gradients[0] = gradients[0] if hvd.rank() == 0 else None
    apply_in(graph and keras_backend == "tensorflow", optimizer, gradients, variables)
    values = [keras.ops.convert_to_numpy(variable).tolist() for variable in variables]
    assert values == [[-0.5, -0.5] if hvd.rank() == 0 else [0.0, 0.0], [-2.0, -2.0], [-20.0, -20.0]]


@ranks(2, 3, backends=["tensorflow"])
def test_process_set() -> None:
    members = [0, 2] if hvd.size() == 3 else [1]
    part = hvd.add_process_set(members)
    model = training.make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=part)
    variable = model.trainable_variables[-1]
    before = keras.ops.convert_to_numpy(variable)
    optimizer.apply(
        [keras.ops.ones(v.shape, v.dtype) * hvd.rank() for v in model.trainable_variables], model.trainable_variables
    )
    expected = np.mean(members) if hvd.rank() in members else hvd.rank()  # by itself
    np.testing.assert_allclose(before - keras.ops.convert_to_numpy(variable), expected)
    hvd.remove_process_set(part)


@ranks(2)
def test_compression() -> None:
    """Training in 16 bits comes near; each dtype rounds what the ranks send."""
    model = training.trained(hvd.DistributedOptimizer(training.sgd(), compression=hvd.Compression.bf16))
    training.check_equal(model, training.serial(), tolerance=0.05)
    for compression, bits in ((hvd.Compression.fp16, 10), (hvd.Compression.bf16, 7)):
        variable = keras.Variable(np.zeros(2))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compression)
        kept, lost = 1 + 2.0**-bits, 1 + 2.0 ** -(bits + 2)
        optimizer.apply([keras.ops.convert_to_tensor(np.array([kept, lost]))], [variable])
        assert keras.ops.convert_to_numpy(variable).tolist() == [-kept, -1.0]


@ranks(2)
def test_16_bit_gradients_are_averaged_in_32_bits() -> None:
    """C44: 60000 + 60000 is beyond float16."""
    variable = keras.Variable(np.zeros(2), dtype="float16")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([keras.ops.convert_to_tensor([60000.0, 60000.0], dtype="float16")], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [-60000.0, -60000.0]


@ranks(2)
def test_embeddings() -> None:
    """IndexedSlices on TensorFlow: each rank looks up rows of its own."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(5)
        return training.Net([keras.Input((3,)), keras.layers.Embedding(7, 4), keras.layers.Flatten()])

    x = np.random.default_rng(1).integers(0, 7, (60, 3))
    y = np.random.default_rng(2).standard_normal((60, 12))
    model = training.compiled(make(), hvd.DistributedOptimizer(training.sgd()))
    training.fit(model, training.own(x), training.own(y), training.SAMPLES // hvd.size())
    expected = training.compiled(make(), training.sgd())
    training.fit(expected, x, y, training.SAMPLES)
    training.check_equal(model, expected)


@ranks(2)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_table_that_one_rank_does_not_use(keras_backend: str) -> None:
    table = keras.Variable(np.zeros((4, 2)))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table])
    gradient = None
    if hvd.rank() == 1:
        gradient = keras.ops.convert_to_tensor(np.array([[0, 0], [2, 4], [0, 0], [6, 8]], "float64"))
        if keras_backend == "tensorflow":
            import tensorflow as tf

            gradient = tf.IndexedSlices(tf.gather(gradient, [3, 1]), tf.constant([3, 1]), tf.constant([4, 2]))
    optimizer.apply([gradient], [table])
    assert keras.ops.convert_to_numpy(table).tolist() == [[0, 0], [-1, -2], [0, 0], [-3, -4]]


@ranks(2)
def test_an_unequal_gradient_leaves_no_request_behind(keras_backend: str) -> None:
    variables = [keras.Variable(np.zeros(2)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[v] for v in variables])
    optimizer.build(variables)
    gradients = [keras.ops.ones((2 + hvd.rank(),), "float64"), keras.ops.ones((2,), "float64")]
    with pytest.raises(Exception, match=r"keras\.gradient\.0"):
        optimizer.apply(gradients, variables)
    if keras_backend == "torch":
        from sirtaki.torch.ops.handles import _pending

        assert not _pending


@ranks(2)
@pytest.mark.parametrize("outer", [False, True])
def test_gradients_without_variables_are_refused(outer: bool) -> None:
    variables = [keras.Variable(np.zeros(2), dtype="float32") for _ in range(2)]
    plain = keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(plain) if outer else plain)
    gradient = keras.ops.ones((2,), "float32")
    with pytest.raises(ValueError, match="got 1 gradients for no variables"):
        optimizer.apply([gradient])
    optimizer.build(variables)
    for given in (None, variables):
        with pytest.raises(ValueError, match="got 1 gradients for 2 variables"):
            optimizer.apply([gradient], given)
    assert all(keras.ops.convert_to_numpy(variable).tolist() == [0.0, 0.0] for variable in variables)


@ranks(2)
@pytest.mark.parametrize("outer", [False, True])
def test_variables_that_are_overwritten_get_the_largest(outer: bool) -> None:
    """As 8-bit floats need it, whose scales and histories come as gradients; without loss scale or learning rate."""
    scale, weight, local = (keras.Variable(np.ones(2), dtype="float32") for _ in range(3))
    scale.overwrite_with_gradient = local.overwrite_with_gradient = True
    plain = keras.optimizers.SGD(1.0)
    inner = keras.optimizers.LossScaleOptimizer(plain, initial_scale=2.0) if outer else plain
    optimizer = hvd.DistributedOptimizer(inner)
    optimizer.register_local_var(local)
    rank = hvd.rank()
    gradients = [np.array(values, "float32") for values in ([rank, 3.0 - rank], [2.0 * rank] * 2, [rank, 0.5])]
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], [scale, weight, local])
    assert keras.ops.convert_to_numpy(local).tolist() == [rank, 0.5]
    assert keras.ops.convert_to_numpy(scale).tolist() == [1.0, 3.0]
    assert keras.ops.convert_to_numpy(weight).tolist() == ([0.5, 0.5] if outer else [0.0, 0.0])


@ranks(2)
def test_wrapping_anew_each_step_keeps_memory() -> None:
    import os

    import psutil

    variable = keras.Variable(np.zeros(10000))
    gradient = keras.ops.ones((10000,), "float64")
    process = psutil.Process(os.getpid())
    base = keras.optimizers.SGD(0.1)
    sizes, kinds = [], set()
    for step in range(400):
        optimizer = hvd.DistributedOptimizer(base)
        optimizer.apply([gradient], [variable])
        kinds.add(type(optimizer))
        if step in (150, 399):
            sizes.append(process.memory_info().rss)
    assert len(kinds) == 1
    assert sizes[1] - sizes[0] < 8 << 20, sizes
    assert len(set(allgather_object(keras.ops.convert_to_numpy(variable).tobytes()))) == 1
