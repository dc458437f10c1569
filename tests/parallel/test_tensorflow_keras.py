"""C27, C36: Keras on two and four ranks, in the jobs of the other tests of TensorFlow."""

import keras
import numpy as np
import pytest
from ranks import ranks

import sirtaki.keras as hvd

STEPS, BATCH = 3, 8


class Tied(keras.Model):
    """The table of the embedding is the output layer as well, if tied."""

    def __init__(self, tied: bool) -> None:
        super().__init__(dtype="float64")
        keras.utils.set_random_seed(1)
        self.tied = tied
        self.table = keras.layers.Embedding(300, 8, dtype="float64")
        self.table.build(())
        self.output_layer = keras.layers.Dense(300, dtype="float64")
        self.output_layer.build((None, 8))

    def call(self, words):
        rows = keras.ops.mean(self.table(words), axis=1)
        return (
            keras.ops.matmul(rows, keras.ops.transpose(self.table.embeddings)) if self.tied else self.output_layer(rows)
        )


def trained(model: keras.Model, optimizer, rank: int, count: int) -> list[float]:
    """The losses of one epoch after another, of this rank's part of every batch."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (STEPS * BATCH, 6)), random.integers(0, 300, STEPS * BATCH)
    x, y = (part.reshape(STEPS, count, -1, *part.shape[1:])[:, rank].reshape(-1, *part.shape[1:]) for part in (x, y))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    model.compile(optimizer, loss=loss)
    callbacks = [hvd.callbacks.MetricAverageCallback()] if count > 1 else []
    history = model.fit(x, y, batch_size=BATCH // count, shuffle=False, verbose=0, epochs=2, callbacks=callbacks)
    return history.history["loss"]


@ranks(2, 4)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_embeddings_and_loss_curves_equal_serial() -> None:
    for tied, options in ((True, {}), (False, {}), (False, {"sparse_as_dense": True})):
        expected, model = Tied(tied), Tied(tied)
        losses = trained(expected, keras.optimizers.SGD(0.5, momentum=0.9), 0, 1)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9), **options)
        np.testing.assert_allclose(trained(model, optimizer, hvd.rank(), hvd.size()), losses, rtol=1e-6)
        for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
