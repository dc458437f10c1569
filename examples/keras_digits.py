"""Trains a small convolutional network on scikit-learn's handwritten digits with Keras 3, on any number of processes.

    KERAS_BACKEND=tensorflow sirtakirun -np 2 python examples/keras_digits.py

KERAS_BACKEND may be torch as well. The batch size is that of all ranks together, so the same training runs on 1, 2 or 4
of them. The lines marked with a number are all that makes a program for one process a program for many.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sirtaki.keras as hvd


def digits() -> list[np.ndarray]:
    """[train_x, test_x, train_y, test_y]: 1437 and 360 images, each (8, 8, 1) in [0, 1], and their digits."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0
    return train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)


def make_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def own_part(array: np.ndarray, batch_size: int) -> np.ndarray:
    """This rank's share of each batch, as many whole batches as there are."""
    batches = array[: len(array) // batch_size * batch_size].reshape(
        -1, hvd.size(), batch_size // hvd.size(), *array.shape[1:]
    )
    return batches[:, hvd.rank()].reshape(-1, *array.shape[1:])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="examples of one step on all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of the model and its data")
    arguments = parser.parse_args(argv)
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")

    hvd.init()  # 1: meet the other ranks
    if arguments.batch_size % hvd.size():
        parser.error(f"--batch-size {arguments.batch_size} cannot be divided among {hvd.size()} ranks")
    keras.utils.set_random_seed(hvd.rank())
    keras.config.set_floatx(arguments.dtype)
    train_x, test_x, train_y, test_y = digits()
    x, y = own_part(train_x, arguments.batch_size), own_part(train_y, arguments.batch_size)  # 2: each rank its part

    model = make_model()
    optimizer = keras.optimizers.SGD(arguments.lr, momentum=0.9)
    model.compile(
        hvd.DistributedOptimizer(optimizer),  # 3: average gradients
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x,
        y,
        batch_size=arguments.batch_size // hvd.size(),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 4: all begin from rank 0's weights
            hvd.callbacks.MetricAverageCallback(),  # 5: metrics are averaged
        ],
    ).history
    _, right = model.evaluate(test_x, test_y, verbose=0)
    if hvd.rank() == 0:  # 6: one rank speaks
        for epoch, loss in enumerate(history["loss"]):
            print(f"Epoch {epoch + 1}: loss {loss:.6f}")
        print(f"Test accuracy on {hvd.size()} rank(s): {right:.4f}", flush=True)


if __name__ == "__main__":
    main()
