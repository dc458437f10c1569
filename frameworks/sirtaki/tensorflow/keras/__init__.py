"""`import sirtaki.tensorflow.keras as hvd` takes the place of `import horovod.tensorflow.keras as hvd`: the names of
sirtaki.keras, for Keras 3 on TensorFlow.
"""

from __future__ import annotations

import tensorflow as tf

if getattr(tf.keras, "__version__", "2").startswith("2"):
    raise ImportError(
        "tf.keras is Keras 2 here (TF_USE_LEGACY_KERAS); sirtaki.tensorflow.keras supports Keras 3. With Keras 2, use "
        "sirtaki.tensorflow's DistributedGradientTape in a loop of your own"
    )

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras runs on {keras.backend.backend()!r} here; sirtaki.tensorflow.keras needs KERAS_BACKEND=tensorflow. "
        "sirtaki.keras serves the other backends"
    )

from sirtaki.keras import *  # noqa: F403
from sirtaki.keras import __all__ as __all__
