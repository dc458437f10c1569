"""A program for Horovod: model.fit with Horovod's callbacks. The argument is the module: horovod.keras or another."""

import importlib
import sys

import numpy as np
import tensorflow as tf

hvd = importlib.import_module(sys.argv[1])
callbacks = importlib.import_module(f"{sys.argv[1]}.callbacks")

hvd.init()
generator = np.random.default_rng(hvd.rank())
labels = generator.integers(4, size=512)
points = (np.eye(4)[labels] + 0.3 * generator.normal(size=(512, 4))).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(4)])
rate = 0.01 * hvd.size()
if sys.argv[1] == "horovod.keras":
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate))
else:
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.Adam(rate), backward_passes_per_step=1, average_aggregated_gradients=True
    )
model.compile(
    optimizer=optimizer, loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(
    points,
    labels,
    batch_size=32,
    epochs=4,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=0),
    ],
)
accuracies = hvd.allgather(np.array([history.history["accuracy"][-1]]))
assert accuracies[0] == accuracies[1], "the metric is not averaged"
if hvd.rank() == 0:
    print(f"Accuracy on {hvd.size()} ranks by {sys.argv[1]}: {accuracies[0]:.3f}")
