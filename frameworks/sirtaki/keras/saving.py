"""Loads saved models so that training continues distributed, and pickles distributed optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sirtaki.compression import Compressor, NoneCompressor
from sirtaki.keras import generations
from sirtaki.keras.attachment import Attachment
from sirtaki.keras.generations import keras
from sirtaki.keras.optimizer import DistributedOptimizer, convert
from sirtaki.keras.options import Options


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = NoneCompressor,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """keras.saving.load_model(), after which the model's optimizer is distributed and keeps its state.

    custom_optimizers: your own classes, found by their names. legacy_opts: ignored; Horovod's programs pass it. A model
    saved without an optimizer is returned as it is. options: other arguments of DistributedOptimizer, as the file does
    not store them. Warns if the loaded optimizer accumulates gradients and backward_passes_per_step is not given. Only
    the calling rank reads the file; BroadcastGlobalVariablesCallback makes the ranks equal.
    """
    named = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        generations.load().warn_of_passes(model.optimizer, options)
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model


def unpickled(arguments: tuple[Any, ...], options: Options) -> Any:
    """Called by pickle for a distributed optimizer: makes Keras's plain optimizer, and distributes it again."""
    return convert(keras.Optimizer._unpickle_model(*arguments), Attachment(options))
