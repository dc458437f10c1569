"""Opening saved models so that their training goes on distributed, and pickling of distributed optimizers."""

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
    """keras.saving.load_model, and the model's optimizer is distributed with all its state.

    custom_optimizers: classes of your own, found by their names. legacy_opts:
    kept for Horovod's programs; the file says which class an optimizer has. A model that was saved without an optimizer
    comes back as it is. options: other arguments of DistributedOptimizer, as the file has none of them; a warning if
    the loaded optimizer accumulates gradients and backward_passes_per_step is not among them. The file is read on the
    rank that calls; BroadcastGlobalVariablesCallback makes ranks equal.
    """
    named = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        generations.load().warn_of_passes(model.optimizer, options)
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model


def unpickled(arguments: tuple[Any, ...], options: Options) -> Any:
    """What __reduce__ of a distributed optimizer asks for: the plain one that Keras makes, distributed again."""
    return convert(keras.Optimizer._unpickle_model(*arguments), Attachment(options))
