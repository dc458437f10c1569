"""barrier, join, and ops that give rank and size."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow import raw


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Waits until every rank of the set has called it. In a graph returns the operation, in eager mode None."""
    return raw.barrier(require_id(process_set))


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Waits until every rank has called it. Returns the rank that called last, int32.

    Until then this rank takes part in the allreduces of the others: with zeros in sums, and not counted in averages.
    After it, unnamed calls are numbered from 1 again. Other threads of this process must not make unnamed calls
    meanwhile: such a call could be paired with a later call of another rank. Named calls are allowed.
    """
    return raw.join()


@tf.autograph.experimental.do_not_convert
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank when the op runs, int32. This and the next ops raise FailedPreconditionError before init."""
    return raw.ask("rank", name=name)


@tf.autograph.experimental.do_not_convert
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank on its host when the op runs, int32."""
    return raw.ask("local_rank", name=name)


@tf.autograph.experimental.do_not_convert
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set when the op runs, int32; InvalidArgumentError if there is no such set."""
    return raw.ask("size", process_set_id, name)


@tf.autograph.experimental.do_not_convert
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host when the op runs, int32."""
    return raw.ask("local_size", name=name)


@tf.autograph.experimental.do_not_convert
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank belongs to the process set when the op runs, otherwise 0; int32."""
    return raw.ask("included", process_set_id, name)
