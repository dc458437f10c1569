"""Which ops of a function run in the program's order, and which run as soon as they can.

TensorFlow keeps the program's order between ops that use the same variables, and between stateful ops that use none. A
training loop uses variables and a join uses none, so nothing would keep them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.framework import ops as framework_ops

_GATES = "sirtaki_gates"  # a graph collection: later ops of the graph run after these
Made = TypeVar("Made")


def free_of_order(made: tf.Tensor) -> None:
    """Lets a function run this op as soon as its inputs exist; collectives in a fixed order could deadlock.

    It still runs after ops made by in_place().
    """
    manager = _manager()
    if manager is None:
        return
    manager.run_independently(made.op)
    made.op._add_control_inputs(_gates(made.graph)[-1:])


def in_place(make: Callable[[], Made]) -> Made:
    """Makes an op by `make`. In a function it runs after all ops before it, and before all ops after it."""
    if _manager() is None:
        return make()
    graph = framework_ops.get_default_graph()
    before = [op for op in graph.get_operations() if auto_control_deps.op_is_stateful(op)]
    with tf.control_dependencies(before):
        made = make()
    with tf.control_dependencies([made]):
        graph.add_to_collection(_GATES, tf.no_op("sirtaki_gate"))
    return made


def _manager() -> Any:
    """The object that orders the ops of the function under trace; None in eager mode and in graphs with a session."""
    return None if tf.executing_eagerly() else framework_ops.get_default_graph().experimental_acd_manager


def _gates(graph: Any) -> list[Any]:
    """The gates of this graph alone. TensorFlow copies an outer graph's collections into nested functions."""
    return [gate for gate in graph.get_collection(_GATES) if gate.graph is graph]


@auto_control_deps.register_acd_resource_resolver
def _uses_all_resources(op: Any, _reads: Any, writes: Any) -> bool:
    """Declares that a gate uses every variable, so TensorFlow runs later users of any variable after it."""
    if op.type != "NoOp" or not any(op is gate for gate in _gates(op.graph)):
        return False
    known = len(writes)
    writes.update(t for other in op.graph.get_operations() for t in other.outputs if t.dtype == tf.resource)
    return len(writes) > known
