"""A program for Horovod: training speed of a TensorFlow model on random data, by a gradient tape in a tf.function."""

import timeit

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.mpi_ops import Average

hvd.init()
for gpu in tf.config.experimental.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)])
model.build((None, 16))
optimizer = tf.optimizers.SGD(0.01)
data = tf.random.uniform([8, 16])
target = tf.random.uniform([8, 1], minval=0, maxval=9, dtype=tf.int64)


@tf.function
def step(first_batch: bool) -> None:
    with tf.GradientTape() as tape:
        loss = tf.losses.sparse_categorical_crossentropy(target, model(data, training=True), from_logits=True)
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16, op=Average)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)


step(first_batch=True)
seconds = timeit.timeit(lambda: step(first_batch=False), number=3)
weights = hvd.allgather(tf.expand_dims(model.variables[0], 0)).numpy()
assert (weights[0] == weights[1]).all(), "the ranks have different weights"
if hvd.rank() == 0:
    print(f"Iter #0: {3 * 8 / seconds:.1f} img/sec per CPU")
    print(f"{hvd.size()} ranks have the same weights")
