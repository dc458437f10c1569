"""A training loop of your own in Keras 3 on TensorFlow: a distributed gradient tape in place of fit().

    sirtakirun -np 2 python examples/gallery/keras_custom_loop.py

The tape averages the gradients, so any Keras optimizer applies the same ones on every rank. Variables are broadcast
after they exist and before the first step.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import sirtaki.tensorflow as hvd


def part_of_this_rank(count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """(count, 4) float32 and (count,) int32: four classes, other examples on each rank."""
    generator = tf.random.Generator.from_seed(hvd.rank())
    labels = generator.uniform([count], maxval=4, dtype=tf.int32)
    return tf.one_hot(labels, 4) + 0.4 * generator.normal([count, 4]), labels


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args(argv)
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # unequal weights at first, to show that the broadcast works
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables([each.value for each in model.variables + optimizer.variables], root_rank=0)

    @tf.function
    def step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    inputs, labels = part_of_this_rank(1024)
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(32)
    for epoch in range(arguments.epochs):
        mean = sum(step(*batch) for batch in batches) / len(batches)
        mean = hvd.allreduce(mean, name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(mean):.4f}")
    right = tf.reduce_mean(tf.cast(tf.argmax(model(inputs), 1, tf.int32) == labels, tf.float32))
    hvd.check_parameters([each.value for each in model.variables])
    accuracy = float(hvd.allreduce(right, name="accuracy"))
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s): accuracy {accuracy:.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
