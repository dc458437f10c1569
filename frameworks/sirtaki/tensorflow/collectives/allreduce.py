"""allreduce: every rank gets the reduction of the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import reduction
from sirtaki.compression import checked_compression
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import choose_op
from sirtaki.tensorflow.collectives.sparse import reduce_slices
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import check_list, to_tensor
from sirtaki.tensorflow.ops.verbs import Reduction


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """A new tensor of the same shape and dtype: postscale * op(prescale * tensor of each rank). Differentiable.

    op is Average by default; integers are summed, divided and truncated toward zero. 16-bit floats are accumulated in
    float32. Gradient: the same allreduce of the gradient (see sirtaki.tensorflow.gradients). IndexedSlices give
    IndexedSlices (see sirtaki.tensorflow.collectives.sparse), with Sum and Average only, else NotImplementedError.

    >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy().tolist()  # on one rank
    [1.0, 2.0]
    """
    return _reduce(
        [tensor],
        Reduction(*reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)),
        name,
        (device_dense, device_sparse),
        compression,
        ignore_name_scope,
    )[0]


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce of several tensors as one request. Returns a list of new tensors. Differentiable.

    Shapes and dtypes may differ. IndexedSlices in the list are reduced one by one, apart from the dense tensors.

    >>> [each.numpy().tolist() for each in hvd.grouped_allreduce([tf.constant([1.0]), tf.constant([[2.0]])])]
    [[1.0], [[2.0]]]
    """
    return _reduce(
        check_list(tensors),
        Reduction(*reduction(choose_op(average, op), prescale_factor, postscale_factor, process_set)),
        name,
        (device_dense, device_sparse),
        compression,
        ignore_name_scope,
    )


def _reduce(
    tensors: Sequence[Any],
    how: Reduction,
    name: str | None,
    devices: tuple[str, str],
    compression: type[Compressor],
    ignore_name_scope: bool,
) -> list[Any]:
    checked_compression(compression)
    results: list[Any] = list(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            with tf.device(devices[1] or None):
                called = name if name is None or len(tensors) == 1 else f"{name}.{i}"
                results[i] = reduce_slices(tensor, called, how, compression, ignore_name_scope=ignore_name_scope)
    if dense:
        with tf.device(devices[0] or None):
            chosen = [tensors[i] for i in dense]
            reduced = reduce_dense(chosen, name, how, compression, ignore_name_scope=ignore_name_scope)
        for i, result in zip(dense, reduced, strict=True):
            results[i] = result
    return results


def reduce_dense(
    tensors: Sequence[Any], name: str | None, how: Reduction, compression: type[Compressor], **scope: bool
) -> list[tf.Tensor]:
    """One request for dense tensors, compressed while they are sent."""
    pairs = [compression.compress(to_tensor(tensor)) for tensor in tensors]
    results = verbs.allreduce([wire for wire, _ in pairs], name, how, **scope)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
