"""GradientTapes whose gradients are reduced over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import check_devices
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.gradients.gradient_reducer import GradientReducer


class _Distributed:
    """The class in front of the tape's own class."""

    _reducer: GradientReducer
    _local_layers: Sequence[Any] = ()

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The tape's gradient(), reduced over the ranks. use_generic_names: ignored; Horovod's programs pass it."""
        grads = super().gradient(target, sources, output_gradients, unconnected_gradients)
        for layer in self._local_layers:
            for weight in layer.trainable_weights:
                self.register_local_source(weight)
        reduced = self._reducer.reduce(tf.nest.flatten(grads), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(grads, reduced)

    def register_local_source(self, source: Any) -> None:
        """This rank's gradient of the source is not reduced."""
        self._reducer.add_local(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """The result of gradient() as two lists of (source, gradient): local sources, then the others."""
        grads = self.gradient(target, sources, output_gradients, use_generic_names)
        parts: tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]] = ([], [])
        for source, grad in zip(tf.nest.flatten(sources), tf.nest.flatten(grads), strict=True):
            parts[0 if self._reducer.is_local(source) else 1].append((source, grad))
        return parts


@functools.cache
def _class_for(base: type) -> type:
    return type(base.__name__, (_Distributed, base), {"__doc__": base.__doc__, "__module__": base.__module__})


@tf.autograph.experimental.do_not_convert
def DistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape that continues this tape's recording, and whose gradient() is reduced over the ranks.

    Sources are named by their order in gradient(), which must be equal on all ranks. sparse_as_dense: sends
    IndexedSlices as tables. op: Average, Sum or Adasum. gradient_predivide_factor f, for Average only: gradients are
    divided by f before the sum and by size/f after it. groups: a number of equal groups, or lists of variables; each
    group is one request (in eager mode there is only one). scale_local_gradients: divides the gradients of local
    sources by the number of ranks. device_*: ignored; Horovod's programs pass them. ValueError for arguments that
    contradict each other.

    >>> weight = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     loss = weight * weight
    >>> float(hvd.DistributedGradientTape(tape).gradient(loss, weight))
    6.0
    """
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape must be a tf.GradientTape, got {type(gradtape).__name__} {gradtape!r:.80}")
    if isinstance(gradtape, _Distributed):
        raise ValueError("this tape is distributed already; its gradients would be reduced twice")
    reducer = GradientReducer.make(
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    kind = _class_for(type(gradtape))
    tape = kind.__new__(kind)
    tape.__dict__.update(gradtape.__dict__)
    tape._reducer = reducer
    return tape


@tf.autograph.experimental.do_not_convert
def PartialDistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedGradientTape that does not reduce the gradients of some Keras layers' weights.

    local_layers: a layer or a list of layers; ValueError for anything else.

    >>> layer, weight = tf.keras.layers.Dense(1), tf.Variable(2.0)
    >>> layer.build((None, 1))
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(layer(tf.ones((1, 1)))) + weight
    >>> tape = hvd.PartialDistributedGradientTape(tape, local_layers=[layer])  # its weights stay this rank's own
    >>> float(tape.gradient(loss, weight))
    1.0
    """
    arguments = dict(locals())
    layers = _layers(arguments.pop("local_layers"))
    tape = DistributedGradientTape(**arguments)
    tape._local_layers = layers  # read later: they may have no weights yet
    return tape


def _layers(local_layers: Any) -> list[Any]:
    if local_layers is None:
        return []
    listed = list(local_layers) if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in listed:
        if not isinstance(layer, tf.keras.layers.Layer):
            raise ValueError(f"local_layers must hold Keras layers, got {type(layer).__name__} {layer!r:.80}")
    return listed
