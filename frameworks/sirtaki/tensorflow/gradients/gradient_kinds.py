"""Makes the kinds of gradients equal on all ranks: None, slices or dense may differ between ranks.

In eager mode the ranks exchange the kinds in every step. A graph is traced once and run often, so the ranks exchange
them with the first trace only. Other ranks do not know of later traces, so these keep the agreed kinds: None becomes
zeros or no rows, rows become a table, and a table becomes all of its rows.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from sirtaki import settings
from sirtaki.checks.gradient_kinds import DENSE, NONE, SPARSE, Agreements, agreed_kinds
from sirtaki.native import core
from sirtaki.tensorflow.ops.failures import as_of_an_op
from sirtaki.tensorflow.ops.labels import functions
from sirtaki.tensorflow.ops.tensors import anchor

_next_number = itertools.count()
_numbers: dict[int, int] = {}  # of variables, by id; unlike ids, numbers are never reused
_agreements: dict[int, Agreements] = {}  # by the first source's number; deleted with that source


def alike(grads: Sequence[Any], sources: Sequence[Any], group: int, no_slices: bool = False) -> list[Any]:
    """The gradients as all ranks of the process set reduce them. In eager mode None if no rank has the gradient.

    no_slices: no rank has IndexedSlices, so a graph needs no agreement.
    """
    kinds = [_kind(grad) for grad in grads]
    with as_of_an_op():
        if tf.executing_eagerly():
            common = agreed_kinds(kinds, group, lambda: _names(sources)) if kinds else []
        else:
            agreed = kinds if no_slices else _agreed_in_graph(kinds, sources, group)
            common = [DENSE if kind == NONE else kind for kind in agreed]
    return [_of_kind(*entry) for entry in zip(grads, sources, common, strict=True)]


def _kind(grad: Any) -> int:
    if grad is None:
        return NONE
    return SPARSE if isinstance(grad, tf.IndexedSlices) else DENSE


def _agreed_in_graph(kinds: list[int], sources: Sequence[Any], group: int) -> list[int]:
    """This rank's own kinds if there is no other rank to agree with, nor one to come."""
    members = core.process_sets().get(group, ()) if core.is_initialized() else ()
    least = 1 if settings.flag("ELASTIC") else 2
    if not kinds or len(members) < least or core.rank() not in members:
        return kinds
    numbers = tuple(_number(source) for source in sources)
    path = "/".join(functions(framework_ops.get_default_graph()))
    known = _agreements.setdefault(numbers[0], Agreements())
    return known.once((path, numbers), kinds, group, lambda: _names(sources), path)


def _names(sources: Sequence[Any]) -> list[str]:
    """Keras variables with the names of their layers; a tensor has no name in eager mode."""
    return [
        getattr(source, "path", None) or source.name if hasattr(source, "assign") else "a tensor" for source in sources
    ]


def _number(source: Any) -> int:
    """-1 for a tensor: it is a new object in each trace, and other ranks may not trace again."""
    if not hasattr(source, "assign"):
        return -1
    thing = anchor(source)
    key = id(thing)
    if key not in _numbers:
        _numbers[key] = next(_next_number)
        weakref.finalize(thing, _forget, key).atexit = False
    return _numbers[key]


def _forget(key: int) -> None:
    _agreements.pop(_numbers.pop(key), None)


def _of_kind(grad: Any, source: Any, kind: int) -> Any:
    if kind == SPARSE:
        return grad if isinstance(grad, tf.IndexedSlices) else _rows(grad, source)
    if kind == DENSE and grad is None:
        return tf.zeros_like(source) if tf.as_dtype(source.dtype).is_floating else None
    return grad if kind == NONE else tf.convert_to_tensor(grad)


def _rows(grad: Any, source: Any) -> tf.IndexedSlices:
    """All rows of a dense gradient, or none where there is no gradient."""
    shape = tf.shape(source, tf.int64)
    if grad is None:
        values = tf.zeros(tf.concat([[0], shape[1:]], 0), source.dtype)
        values.set_shape([0, *source.shape[1:]] if source.shape.rank else None)
        return tf.IndexedSlices(values, tf.zeros([0], tf.int64), shape)
    return tf.IndexedSlices(tf.convert_to_tensor(grad), tf.range(shape[0]), shape)
