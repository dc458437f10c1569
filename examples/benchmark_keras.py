"""Keras's side of synthetic_benchmark.py: model.fit(), on TensorFlow or PyTorch as KERAS_BACKEND says."""

import argparse
import math
import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import resnet_keras


def use_threads(number: int | None, no_gpu: bool) -> int:
    """Sets the compute threads of this process before anything is computed, and tells them."""
    if keras.backend.backend() == "torch":
        import torch

        if number:
            torch.set_num_threads(number)
        return torch.get_num_threads()
    import tensorflow as tf

    if no_gpu:
        tf.config.set_visible_devices([], "GPU")
    number = number or int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    tf.config.threading.set_intra_op_parallelism_threads(number)
    return number


def gpus() -> list:
    if keras.backend.backend() == "torch":
        import torch

        return list(range(torch.cuda.device_count()))
    import tensorflow as tf

    return tf.config.get_visible_devices("GPU")


class Benchmark:
    """See synthetic_benchmark.py for what each member means."""

    dtype = "float32"

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.use_adasum:
            raise SystemExit("--use-adasum: Keras optimizers reduce by Average and Sum only")
        self.arguments = arguments
        self.hvd = None
        self.threads = use_threads(arguments.threads, arguments.no_cuda)
        if not arguments.no_sirtaki:
            import sirtaki.keras as hvd

            hvd.init()
            self.hvd = Adapter(hvd)
        backend = keras.backend.backend()
        self.versions = {"keras": keras.__version__, backend: __import__(backend).__version__}
        self.device = "GPU" if gpus() and not arguments.no_cuda else "CPU"
        keras.utils.set_random_seed(1)
        size, batch = arguments.image_size, arguments.batch_size
        self.images = np.random.standard_normal((batch, size, size, 3)).astype("float32")
        self.labels = np.random.randint(0, 1000, batch)
        self.model: keras.Model | None = None

    def count_ranks(self) -> int:
        return int(self.hvd.allreduce(np.ones(1), name="count_ranks", op=self.hvd.Sum)[0])

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
        """A model of its own; the function returned trains one batch by fit()."""
        model = resnet_keras.make(self.arguments.model, self.arguments.image_size)
        optimizer = keras.optimizers.SGD(0.01)
        if distributed:
            optimizer.learning_rate = 0.01 * self.hvd.size()
            optimizer = self.hvd.DistributedOptimizer(optimizer, compression=self.compression)
            optimizer.build(model.trainable_variables)
            self.hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
            self.model = model
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

        def train() -> float:
            model.fit(self.images, self.labels, batch_size=len(self.images), verbose=0)
            return math.nan  # waiting is part of the step

        return train

    def exchange(self) -> None:
        """The gradients of one step by the optimizer's own reduction."""
        from sirtaki.keras.attachment import reduce_gradients

        variables = self.model.trainable_variables
        reduce_gradients(self.model.optimizer, [keras.ops.zeros_like(variable) for variable in variables], variables)

    def finish(self) -> None:
        """Nothing: a step gives its loss to the program."""


class Adapter:
    """sirtaki.keras with what synthetic_benchmark.py needs of every adapter."""

    def __init__(self, hvd) -> None:
        self._hvd = hvd

    def __getattr__(self, name: str):
        return getattr(self._hvd, name)

    def barrier(self) -> None:
        self._hvd.allreduce(np.zeros(1), name="barrier")

    @staticmethod
    def allgather_object(value):
        from sirtaki.exchange import allgather_object

        return allgather_object(value, "benchmark")
