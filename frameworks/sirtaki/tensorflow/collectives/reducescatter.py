"""reducescatter: the reduction of all tensors, of which each rank gets some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import reduction
from sirtaki.compression import checked_compression
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import check_list, to_tensors
from sirtaki.tensorflow.ops.verbs import Reduction


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """This rank's rows of the reduced tensor. The first `rows % ranks` ranks get one row more; some may get none.

    op is Average or Sum. Shapes must be equal on all ranks. Differentiable: the joined gradients of all parts,
    multiplied by the number of ranks for Sum (see sirtaki.tensorflow.gradients). NotImplementedError for IndexedSlices.

    >>> hvd.reducescatter(tf.constant([[1.0], [2.0]]), op=hvd.Sum).numpy().tolist()  # on one rank: all rows
    [[1.0], [2.0]]
    """
    how = Reduction(*reduction(op, prescale_factor, postscale_factor, process_set))
    return _scatter([tensor], device_dense, compression, how, name, ignore_name_scope)[0]


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """reducescatter of several tensors as one request. Returns a list. Differentiable.

    >>> [each.numpy().tolist() for each in hvd.grouped_reducescatter([tf.constant([1.0]), tf.constant([2.0])])]
    [[1.0], [2.0]]
    """
    how = Reduction(*reduction(op, prescale_factor, postscale_factor, process_set))
    return _scatter(check_list(tensors), device_dense, compression, how, name, ignore_name_scope)


def _scatter(
    tensors: Sequence[Any],
    device: str,
    compression: type[Compressor],
    how: Reduction,
    name: str | None,
    ignore_name_scope: bool,
) -> list[tf.Tensor]:
    checked_compression(compression)
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError("reducescatter takes dense tensors only, got IndexedSlices")
    with tf.device(device or None):
        pairs = [compression.compress(tensor) for tensor in to_tensors(tensors)]
        results = verbs.reducescatter([wire for wire, _ in pairs], name, how, ignore_name_scope=ignore_name_scope)
        return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
