"""barrier and join: every rank waits for the others."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.tensorflow.ops import verbs


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Waits until every rank of the set has called it. In a graph returns the operation, in eager mode None.

    >>> hvd.barrier()
    """
    return verbs.barrier(require_id(process_set))


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Waits until every rank has called it. Returns the rank that called last, int32.

    Until then this rank takes part in the allreduces of the others: with zeros in sums, and not counted in averages.
    After it, unnamed calls are numbered from 1 again. Other threads of this process must not make unnamed calls
    meanwhile: such a call could be paired with a later call of another rank. Named calls are allowed.

    >>> int(hvd.join())
    0
    """
    return verbs.join()
