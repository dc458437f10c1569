"""Makes variables and Python objects equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki import exchange
from sirtaki.checks.arguments import checked_root
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.collectives.broadcast import broadcast_


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Sequence[tf.Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites each variable with the root's value; dtypes and shapes must equal the root's.

    All variables are one request, so `inplace` changes nothing; Horovod's programs pass it. Returns the operation to
    run in a graph of TensorFlow 1.

    >>> hvd.broadcast_variables([tf.Variable([1.0, 2.0])], root_rank=0)
    """
    if tf.executing_eagerly() or tf.inside_function():
        broadcast_(variables, root_rank, process_set=process_set)
        return None
    with tf.compat.v1.name_scope("broadcast_variables"):
        return tf.group(*broadcast_(variables, root_rank, process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object on every rank, pickled by cloudpickle. The root gets its own; obj of others is ignored.

    Blocks; call it outside of graphs. session: ignored; Horovod's programs pass it.

    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    return exchange.broadcast_object(obj, checked_root(root_rank), name, require_id(process_set))


@tf.autograph.experimental.do_not_convert
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """broadcast_object() with all arguments bound except the object.

    >>> from_root = hvd.broadcast_object_fn(root_rank=0)
    >>> from_root("text")
    'text'
    """

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@tf.autograph.experimental.do_not_convert
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks of the set in the order of ranks, by cloudpickle. Blocks; call it outside of graphs.

    >>> hvd.allgather_object(hvd.rank())
    [0]
    """
    return exchange.allgather_object(obj, name, require_id(process_set))


@tf.autograph.experimental.do_not_convert
def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: the operation that overwrites all global variables with the root's values.

    RuntimeError in eager mode, which has no global variables; use broadcast_variables().
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() does not support eager execution; use broadcast_variables(variables, root)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
