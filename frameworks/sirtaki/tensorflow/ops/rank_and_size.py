"""Ops that give ranks and sizes when they run."""

from __future__ import annotations

import tensorflow as tf

from sirtaki.tensorflow.ops import verbs


@tf.autograph.experimental.do_not_convert
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank when the op runs, int32. This and the next ops raise FailedPreconditionError before init."""
    return verbs.query("rank", name=name)


@tf.autograph.experimental.do_not_convert
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank on its host when the op runs, int32."""
    return verbs.query("local_rank", name=name)


@tf.autograph.experimental.do_not_convert
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set when the op runs, int32; InvalidArgumentError if there is no such set."""
    return verbs.query("size", process_set_id, name)


@tf.autograph.experimental.do_not_convert
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host when the op runs, int32."""
    return verbs.query("local_size", name=name)


@tf.autograph.experimental.do_not_convert
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank belongs to the process set when the op runs, otherwise 0; int32."""
    return verbs.query("included", process_set_id, name)
