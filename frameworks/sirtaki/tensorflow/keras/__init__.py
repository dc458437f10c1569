"""`import sirtaki.tensorflow.keras as hvd` takes the place of `import horovod.tensorflow.keras as hvd`: the names of
sirtaki.keras, for Keras on TensorFlow: Keras 3, or Keras 2 where tf.keras is that.
"""

from __future__ import annotations

from sirtaki.keras.generations import keras as _keras

if _keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras runs on {_keras.backend.backend()!r} here; sirtaki.tensorflow.keras needs KERAS_BACKEND=tensorflow. "
        "sirtaki.keras serves the other backends"
    )

from sirtaki.keras import *  # noqa: F403
from sirtaki.keras import __all__ as __all__
