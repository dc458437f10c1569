"""Training through the tape and the optimizers: equal to a serial run, whichever way gradients are applied."""

import gc
import resource

import numpy as np
import pytest
import tensorflow as tf
from ranks import ranks
from tensorflow_references import MODES, in_mode

import sirtaki.tensorflow as hvd
from sirtaki.native import core
from sirtaki.timing.text.summary_line import CAUSES

BATCH = 12  # divisible by 2 and 3


class Network(tf.Module):
    """A small convolution network in float64, the same on every rank."""

    def __init__(self, dtype: tf.DType = tf.float64) -> None:
        super().__init__()
        generator = np.random.default_rng(3)

        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(generator.normal(0, 0.3, shape), dtype=dtype)

        self.kernel, self.bias = variable(3, 3, 2, 4), variable(4)
        self.dense, self.shift = variable(4, 3), variable(3)

    def loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.tanh(tf.nn.conv2d(images, self.kernel, 1, "SAME") + self.bias)
        logits = tf.reduce_mean(hidden, [1, 2]) @ self.dense + self.shift
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def batch(step: int) -> tuple[tf.Tensor, tf.Tensor]:
    generator = np.random.default_rng(100 + step)
    return tf.constant(generator.normal(size=(BATCH, 6, 6, 2))), tf.constant(generator.integers(0, 3, BATCH))


def own_part(tensors: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
    rows = BATCH // hvd.size()
    return tuple(t[hvd.rank() * rows : (hvd.rank() + 1) * rows] for t in tensors)


def serial(steps: int, rate: float = 0.5) -> Network:
    network = Network()
    for step in range(steps):
        with tf.GradientTape() as tape:
            loss = network.loss(*batch(step))
        for variable, grad in zip(network.variables, tape.gradient(loss, network.variables), strict=True):
            variable.assign_sub(rate * grad)
    return network


def check_equal(network: Network, expected: Network, tolerance: float = 1e-10) -> None:
    for variable, other in zip(network.variables, expected.variables, strict=True):
        np.testing.assert_allclose(variable, other, rtol=0, atol=tolerance)
        assert len(set(hvd.allgather_object(variable.numpy().tobytes()))) == 1


OPTIONS = {
    "plain": {},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 3.0},
    "sum": {"op": hvd.Sum},
}


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIONS)
def test_tape_equals_serial(rank_count, mode, options):
    network = Network()

    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = network.loss(images, labels)
        tape = hvd.DistributedGradientTape(tape, **OPTIONS[options])
        rate = 0.5 / rank_count if options == "sum" else 0.5
        for variable, grad in zip(network.variables, tape.gradient(loss, network.variables), strict=True):
            variable.assign_sub(rate * grad)

    step = in_mode(mode, step)
    counted = core.step_times()["steps"]
    for number in range(5):
        step(*own_part(batch(number)))
    check_equal(network, serial(5))
    times = core.step_times()
    assert times["steps"] - counted in (4, 5)  # the first step of a job is not counted
    assert 0 < sum(times["latest"][cause] for cause in CAUSES) < times["latest"]["length"]


@ranks(2, 4)
@pytest.mark.parametrize("mode", MODES)
def test_loss_curve_of_one_and_of_several_ranks(rank_count, mode):
    """C36: the same global batches."""
    network, alone = Network(), Network()

    def step(images, labels, distributed):
        trained = network if distributed else alone
        with tf.GradientTape() as tape:
            loss = trained.loss(images, labels)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        for variable, grad in zip(trained.variables, tape.gradient(loss, trained.variables), strict=True):
            variable.assign_sub(2.0 * grad)
        return hvd.allreduce(loss, name="loss") if distributed else loss

    step = in_mode(mode, step)
    curves = [
        [float(step(*own_part(batch(number % 4)), True)) for number in range(12)],
        [float(step(*batch(number % 4), False)) for number in range(12)],
    ]
    np.testing.assert_allclose(*curves, rtol=1e-10)
    assert curves[0][-1] < 0.99 * curves[0][0]
    check_equal(network, alone)


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("passes", (1, 2))
def test_v1_optimizer_equals_serial(rank_count, mode, passes):
    """With two passes, each takes half of this rank's part."""
    network = Network()
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.5),
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )
    assert isinstance(optimizer, tf.compat.v1.train.GradientDescentOptimizer)

    def step(images, labels):
        optimizer.minimize(lambda: network.loss(images, labels), var_list=list(network.variables))

    step = in_mode(mode, step)
    for number in range(5):
        images, labels = own_part(batch(number))
        rows = images.shape[0] // passes
        for part in range(passes):
            step(images[part * rows : (part + 1) * rows], labels[part * rows : (part + 1) * rows])
    check_equal(network, serial(5))
    with pytest.raises(RuntimeError, match="compute_gradients"):
        optimizer.apply_gradients([(tf.zeros_like(v), v) for v in network.variables])


@ranks(2)
@pytest.mark.parametrize("passes", (1, 2))
def test_v1_session(rank_count, passes):
    """Each pass has gradient (rank + 1) * number; what is applied is the average over ranks of the passes' sum."""
    with tf.Graph().as_default():
        x, other = (tf.compat.v1.get_variable(name, initializer=[0.0, 0.0]) for name in ("x", "other"))
        number = tf.compat.v1.placeholder(tf.float32, [])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
        )
        train = optimizer.minimize(tf.reduce_sum(x + other) * number * (hvd.rank() + 1.0), var_list=[x, other])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            total, pending = 0.0, 0.0
            for step in range(1, 21):
                session.run(train, {number: float(step)})
                pending += 1.5 * step
                if step % passes == 0:
                    total, pending = total + pending, 0.0
                assert [v.tolist() for v in session.run([x, other])] == [[-total] * 2] * 2, step


@ranks(2)
def test_gradients_of_some_passes_only(rank_count):
    """a has a gradient in the first pass of each step, b in the second, on both ranks."""
    a, b = tf.Variable([10.0]), tf.Variable([10.0])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    for _ in range(3):
        for used in (a, b):
            pairs = optimizer.compute_gradients(lambda used=used: used * (hvd.rank() + 1.0), var_list=[a, b])
            optimizer.apply_gradients(pairs)
    assert a.numpy() == b.numpy() == [10.0 - 3 * 1.5]


@ranks(2)
@pytest.mark.parametrize("mode", MODES)
def test_unused_variables(rank_count, mode):
    """C43: a is used on rank 0 only, b on rank 1 only, c nowhere; later b is frozen."""
    a, b, c = (tf.Variable([1.0, 1.0]) for _ in range(3))

    def step(frozen):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum((a if hvd.rank() == 0 else b) * 4.0)
        return tape.gradient(loss, {"a": a, "rest": [c] if frozen else [b, c]})

    step = in_mode(mode, step)
    grads = step(False)
    assert grads["a"].numpy().tolist() == [2.0, 2.0] and grads["rest"][0].numpy().tolist() == [2.0, 2.0]
    nowhere = grads["rest"][1]
    assert nowhere is None if mode == "eager" else nowhere.numpy().tolist() == [0.0, 0.0]
    assert step(True)["a"].numpy().tolist() == [2.0, 2.0]


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_local_sources(rank_count, mode):
    shared, local = tf.Variable([1.0]), tf.Variable([1.0])
    for scale, expected in ((True, np.float32(hvd.rank() + 1) / rank_count), (False, hvd.rank() + 1)):

        def step(scale=scale):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_sum((shared + local) * (hvd.rank() + 1.0))
            tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
            tape.register_local_source(local)
            grads = tape.gradient(loss, [shared, local])
            own, of_all = tape.get_local_and_global_gradients(loss, [shared, local])
            assert [source is local for source, _ in own] == [source is shared for source, _ in of_all] == [True]
            return (*grads, of_all[0][1], own[0][1])

        grads = in_mode(mode, step)()
        assert [float(g[0]) for g in grads] == [(rank_count + 1) / 2, expected] * 2


@ranks(2, 3)
def test_outside_the_process_set(rank_count):
    """A rank outside keeps its own gradient, also of local sources, in every mode; the members reduce theirs."""
    chosen = hvd.add_process_set([0, 2] if rank_count == 3 else [0])
    inside = chosen.included()
    rank, mean = float(hvd.rank()), 1.0 if rank_count == 3 else 0.0
    expected = [2 * (mean if inside else rank), 2 * rank / (chosen.size() if inside else 1)]

    def step():
        x, local = tf.constant(rank), tf.constant(rank)
        with tf.GradientTape() as tape:
            tape.watch([x, local])
            y = x * x + local * local
        tape = hvd.DistributedGradientTape(tape, process_set=chosen)
        tape.register_local_source(local)
        return tape.gradient(y, [x, local])

    try:
        assert [float(grad) for grad in step()] == expected
        assert [float(grad) for grad in tf.function(step)()] == expected
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            assert session.run(step()) == expected
            for passes in (1, 2):
                variable = tf.compat.v1.get_variable(f"v{passes}", initializer=rank)
                plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
                made = hvd.DistributedOptimizer(plain, backward_passes_per_step=passes, process_set=chosen)
                train = made.minimize(variable * variable)
                session.run(tf.compat.v1.global_variables_initializer())
                for _ in range(passes):
                    session.run(train)
                assert session.run(variable) == rank - passes * expected[0]
        hvd.barrier()
    finally:
        assert hvd.remove_process_set(chosen)


@ranks(2)
def test_partial_tape(rank_count):
    layer, other = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    x = tf.ones([1, 1]) * (hvd.rank() + 1)
    layer.build((1, 1))
    other.build((1, 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) + other(x))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer, scale_local_gradients=False)
    grads = tape.gradient(loss, [layer.kernel, other.kernel])
    assert [float(g[0][0]) for g in grads] == [hvd.rank() + 1.0, 1.5]
    for kinds in ("inner", "outer"):  # a Keras variable is registered, its TensorFlow variable is a source; reverse
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x) + other(x))
        tape = hvd.DistributedGradientTape(tape, groups=[[other.kernel.value]], scale_local_gradients=False)
        tape.register_local_source(layer.kernel if kinds == "inner" else layer.kernel.value)
        sources = [layer.kernel, other.kernel]
        own, of_all = tape.get_local_and_global_gradients(
            loss, [v.value for v in sources] if kinds == "inner" else sources
        )
        assert [float(g[0][0]) for _, g in own + of_all] == [hvd.rank() + 1.0, 1.5]
    late = tf.keras.layers.Dense(1, use_bias=False)
    with hvd.PartialDistributedGradientTape(
        tf.GradientTape(), local_layers=[late], scale_local_gradients=False
    ) as tape:
        loss = tf.reduce_sum(late(x) + other(x))
    grads = tape.gradient(loss, [late.kernel, other.kernel])
    assert [float(g[0][0]) for g in grads] == [hvd.rank() + 1.0, 1.5]
    with pytest.raises(ValueError, match="Keras layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["layer"])
    for wrong in ("kernel", [layer.kernel], None):
        with pytest.raises(ValueError, match="local must be a variable or tensor, got"):
            hvd.DistributedGradientTape(tf.GradientTape()).register_local_source(wrong)


@ranks(2)
def test_wrong_arguments(rank_count):
    tape = tf.GradientTape
    for call in (
        lambda: hvd.DistributedGradientTape("tape"),
        lambda: hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape())),
        lambda: hvd.DistributedGradientTape(tape(), gradient_predivide_factor=2.0, op=hvd.Sum),
        lambda: hvd.DistributedGradientTape(tape(), groups="two"),
        lambda: hvd.DistributedGradientTape(tape(), groups=-1),
        lambda: hvd.DistributedOptimizer("sgd"),
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(), backward_passes_per_step=0),
        lambda: hvd.SyncBatchNormalization(fused=True),
    ):
        with pytest.raises(ValueError):
            call()


@ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
def test_synchronised_batch_norm(rank_count, mode):
    """Output, moving averages and the gradient of the input equal those of the joined batch; uneven parts."""
    rows = [2 + rank for rank in range(rank_count)]
    data = np.random.default_rng(0).normal(5.0, 2.0, (sum(rows), 3, 4))
    start = sum(rows[: hvd.rank()])
    own = slice(start, start + rows[hvd.rank()])
    whole, part = tf.keras.layers.BatchNormalization(dtype="float64"), hvd.SyncBatchNormalization(dtype="float64")

    def run(layer, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y**3)
        return y, tape.gradient(loss, x)

    whole.build(data.shape)
    part.build((None, 3, 4))
    expected, expected_grad = run(whole, tf.constant(data))
    y, grad = in_mode(mode, lambda x: run(part, x))(tf.constant(data[own]))
    np.testing.assert_allclose(y, expected[own], atol=1e-9)
    np.testing.assert_allclose(grad, expected_grad[own], atol=1e-7)
    np.testing.assert_allclose(part.moving_mean, whole.moving_mean, atol=1e-9)
    np.testing.assert_allclose(part.moving_variance, whole.moving_variance, atol=1e-9)


def resident() -> float:
    """MiB."""
    pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
    return pages * resource.getpagesize() / 2**20


@pytest.mark.long
@ranks(2)
def test_memory_of_many_steps(rank_count):
    """C73: a tape or an optimizer wrapped anew each step, eager calls with ever-new names."""
    variables = [tf.Variable(tf.ones([64])) for _ in range(3)]

    def loss():
        return tf.add_n([tf.reduce_sum(v * v) for v in variables])

    def steps(count, start):
        for step in range(count):
            if step % 3:
                with tf.GradientTape() as tape:
                    value = loss()
                hvd.DistributedGradientTape(tape).gradient(value, variables)
            else:
                optimizer = tf.compat.v1.train.GradientDescentOptimizer(1e-9)
                hvd.DistributedOptimizer(optimizer).minimize(loss, var_list=variables)
        for number in range(5 * start, 5 * (start + count)):
            hvd.allreduce(variables[0], name=f"step {number}")

    def growth(count, start):
        gc.collect()
        before = resident()
        steps(count, start)
        gc.collect()
        return resident() - before

    steps(850, 0)  # more names than labels are kept for
    halves = growth(150, 850), growth(150, 1000)
    assert min(halves) < 0.25, halves  # a leak of 1 KiB for each call would be 0.7 MiB or more in either half
