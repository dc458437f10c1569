"""One op for each verb, on checked arguments. registered_gradients.py registers their gradients.

Several tensors are one request. `name` None: see labels.py. `group` is a process set's id. In a graph, ops are not in
TensorFlow's order of side effects: their order must not matter, or ranks could wait for each other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.reduce_ops import Average
from sirtaki.tensorflow.ops.labels import label, refuse_xla
from sirtaki.tensorflow.ops.library import ops
from sirtaki.tensorflow.ops.program_order import free_of_order, in_place

_QUERIES = ("rank", "size", "local_rank", "local_size", "included", "rank_in_set", "end_step")


class Reduction(NamedTuple):
    """How to reduce: the result of sirtaki.checks.arguments.reduction()."""

    op: int = int(Average)
    prescale: float = 1.0
    postscale: float = 1.0
    group: int = 0

    @classmethod
    def of(cls, op: Any) -> Reduction:
        """The reduction of an existing op."""
        prescale, postscale = (real(op.get_attr(name)) for name in ("prescale_bits", "postscale_bits"))
        return cls(op.get_attr("reduce_op"), prescale, postscale, op.get_attr("process_set"))

    def attributes(self) -> dict[str, int]:
        return {
            "reduce_op": self.op,
            "prescale_bits": _bits(self.prescale),
            "postscale_bits": _bits(self.postscale),
            "process_set": self.group,
        }


def _bits(value: float) -> int:
    """A double as an integer attribute: TensorFlow's float attributes have 32 bits only."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def real(bits: int) -> float:
    """The double in an attribute written by _bits()."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def _circumstances() -> dict[str, Any]:
    """The call site, and whether the thread that runs the op has nothing else to do than to wait for it."""
    return {"site": call_site(), "eager": int(tf.executing_eagerly())}


def allreduce(tensors: Sequence[tf.Tensor], name: str | None, how: Reduction, **scope: bool) -> list[tf.Tensor]:
    refuse_xla()
    called = label(name, "allreduce", **scope)
    results = ops.sirtaki_allreduce(tensors=tensors, label=called, **_circumstances(), **how.attributes())
    free_of_order(results[0])
    return results


def allgather(tensors: Sequence[tf.Tensor], name: str | None, group: int, **scope: bool) -> list[tf.Tensor]:
    refuse_xla()
    called = label(name, "allgather", **scope)
    results = ops.sirtaki_allgather(tensors=tensors, label=called, process_set=group, **_circumstances())
    free_of_order(results[0])
    return results


def broadcast(tensors: Sequence[tf.Tensor], root: int, name: str | None, group: int, **scope: bool) -> list[tf.Tensor]:
    refuse_xla()
    called = label(name, "broadcast", **scope)
    results = ops.sirtaki_broadcast(
        tensors=tensors, label=called, root_rank=root, process_set=group, **_circumstances()
    )
    free_of_order(results[0])
    return results


def alltoall(
    tensor: tf.Tensor, splits: Any, name: str | None, group: int, **scope: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """splits: int32, empty for equal parts. Result: (output, received_splits)."""
    refuse_xla()
    called = label(name, "alltoall", **scope)
    result = ops.sirtaki_alltoall(tensor=tensor, splits=splits, label=called, process_set=group, **_circumstances())
    free_of_order(result[0])
    return result[0], result[1]


def reducescatter(tensors: Sequence[tf.Tensor], name: str | None, how: Reduction, **scope: bool) -> list[tf.Tensor]:
    refuse_xla()
    called = label(name, "reducescatter", **scope)
    results = ops.sirtaki_reducescatter(tensors=tensors, label=called, **_circumstances(), **how.attributes())
    free_of_order(results[0])
    return results


def barrier(group: int) -> Any:
    """Runs in the program's order."""
    refuse_xla()
    called = label(None, "barrier")
    return in_place(lambda: ops.sirtaki_barrier(label=called, process_set=group, **_circumstances()))


def join() -> tf.Tensor:
    """The last rank to join, int32. Runs in the program's order."""
    refuse_xla()
    called = label(None, "join")
    return in_place(lambda: ops.sirtaki_join(label=called, **_circumstances()))


def query(question: str, group: int = 0, name: str | None = None) -> tf.Tensor:
    """An int32 scalar that is computed when the op runs."""
    return ops.sirtaki_topology(question=_QUERIES.index(question), process_set=group, name=name)


def query_again(op: Any) -> tf.Tensor:
    """The question of an existing op."""
    return ops.sirtaki_topology(question=op.get_attr("question"), process_set=op.get_attr("process_set"))


def known_size(group: int) -> int | None:
    """The number of ranks of a process set if it is known while the program is built, else None."""
    return len(core.process_sets().get(group, ())) or None if core.is_initialized() else None
