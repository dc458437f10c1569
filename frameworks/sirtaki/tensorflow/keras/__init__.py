"""`import sirtaki.tensorflow.keras as hvd` replaces `import horovod.tensorflow.keras as hvd`. It has the names of
sirtaki.keras, for Keras on TensorFlow: Keras 3, or Keras 2 if tf.keras is Keras 2.
"""

from __future__ import annotations

from typing import Any

from sirtaki.keras.generations import keras as _keras

if _keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras runs on {_keras.backend.backend()!r} here; sirtaki.tensorflow.keras needs KERAS_BACKEND=tensorflow. "
        "sirtaki.keras serves the other backends"
    )

from sirtaki.checks.arguments import Groups
from sirtaki.compression import Compressor, NoneCompressor
from sirtaki.keras import *  # noqa: F403
from sirtaki.keras import __all__ as __all__
from sirtaki.keras.optimizer import distributed as _distributed
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average


def DistributedOptimizer(  # type: ignore[no-redef]  # noqa: N802  Horovod's name, and another order
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    shard_optimizer_state: bool = False,
) -> Any:
    """sirtaki.keras.DistributedOptimizer, with its arguments in the order of horovod.tensorflow.keras."""
    return _distributed(**locals())
