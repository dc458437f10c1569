"""barrier and join: the ranks wait for each other. Rank and size as ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow import raw


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Ends when every rank of the set has come here. In a graph: the operation, None in eager mode."""
    return raw.barrier(require_id(process_set))


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Ends when every rank has called it; the last one's rank, int32.

    Until then this rank takes part in the others' allreduces without a say: as zeros in sums, not counted in averages.
    Calls without a name are numbered anew after it. So other threads of this process must not make such calls while it
    lasts: nothing says on which side of it they are, and they could meet the others' next calls. Named calls may be.
    """
    return raw.join()


@tf.autograph.experimental.do_not_convert
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank when the op runs, int32; as for all of these, FailedPreconditionError before init."""
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
