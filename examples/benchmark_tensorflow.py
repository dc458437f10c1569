"""TensorFlow's side of synthetic_benchmark.py: a training step of its own, compiled by tf.function."""

import argparse
import math
import os
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "tensorflow"  # the model's layers are Keras's
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import resnet_keras
import tensorflow as tf


class Benchmark:
    """See synthetic_benchmark.py for what each member means."""

    dtype = "float32"

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.use_adasum:
            raise SystemExit("--use-adasum: not with TensorFlow's gradient tape")
        self.arguments = arguments
        if arguments.no_cuda:
            tf.config.set_visible_devices([], "GPU")
        given = arguments.threads or os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
        self.threads = int(given)
        tf.config.threading.set_intra_op_parallelism_threads(self.threads)
        self.hvd = None
        if not arguments.no_sirtaki:
            import sirtaki.tensorflow as hvd

            hvd.init()
            self.hvd = hvd
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        self.device = "GPU" if tf.config.get_visible_devices("GPU") else "CPU"
        keras.utils.set_random_seed(1)
        size, batch = arguments.image_size, arguments.batch_size
        self.images = tf.random.normal((batch, size, size, 3))
        self.labels = tf.random.uniform((batch,), maxval=1000, dtype=tf.int64)
        self.gradients: list[tf.Tensor] = []

    def count_ranks(self) -> int:
        return int(self.hvd.allreduce(tf.ones(1), name="count_ranks", op=self.hvd.Sum)[0])

    @property
    def wire_dtype(self) -> str:
        if self.arguments.bf16_allreduce:
            return "bfloat16"
        return "float16" if self.arguments.fp16_allreduce else self.dtype

    @property
    def compression(self):
        """The adapter's class that casts gradients to wire_dtype and back."""
        choices = self.hvd.Compression
        return {"bfloat16": choices.bf16, "float16": choices.fp16, self.dtype: choices.none}[self.wire_dtype]

    def trainer(self, distributed: bool) -> Callable[[], float]:
        """A model and an optimizer of their own; the function returned trains one batch."""
        model = resnet_keras.make(self.arguments.model, self.arguments.image_size)
        optimizer = keras.optimizers.SGD(0.01 * (self.hvd.size() if distributed else 1))
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        variables = [variable.value for variable in model.trainable_variables]
        if distributed:
            self.hvd.broadcast_variables([v.value for v in (*model.weights, *optimizer.variables)], root_rank=0)
            self.gradients = [tf.zeros_like(variable) for variable in variables]

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(self.labels, model(self.images, training=True))
            if distributed:
                tape = self.hvd.DistributedGradientTape(tape, compression=self.compression)
            optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
            return loss

        def train() -> float:
            step().numpy()
            return math.nan  # the graph waits while it computes

        return train

    def exchange(self) -> None:
        self.hvd.grouped_allreduce(self.gradients, op=self.hvd.Sum, compression=self.compression, name="exchange")

    def finish(self) -> None:
        """Nothing: a step gives its loss to the program."""
