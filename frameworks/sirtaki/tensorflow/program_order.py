"""Which ops of a function keep their place in the program, and which are free of it.

TensorFlow runs the ops of a function in the program's order where they use the same variables, and those with side
effects that use none among themselves. A loop that trains uses variables and a join uses none, so nothing would keep
the one before the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.framework import ops as framework_ops

_GATES = "sirtaki_gates"  # a collection of the graph: what comes later in it comes after these
Made = TypeVar("Made")


def free_of_order(made: tf.Tensor) -> None:
    """Lets a function run this op as soon as its inputs are there: collectives that wait for each other would hang.

    It still comes after what in_place() has made.
    """
    manager = _manager()
    if manager is None:
        return
    manager.run_independently(made.op)
    made.op._add_control_inputs(_gates(made.graph)[-1:])


def in_place(make: Callable[[], Made]) -> Made:
    """The op that `make` makes; in a function it runs after everything before it, and before everything after it."""
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
    """What gives the ops of the function under trace their order; None in eager mode and in graphs with a session."""
    return None if tf.executing_eagerly() else framework_ops.get_default_graph().experimental_acd_manager


def _gates(graph: Any) -> list[Any]:
    """Its own; TensorFlow gives a nested function's graph the collections of the one around it as well."""
    return [gate for gate in graph.get_collection(_GATES) if gate.graph is graph]


@auto_control_deps.register_acd_resource_resolver
def _uses_all_resources(op: Any, _reads: Any, writes: Any) -> bool:
    """Says of a gate that it uses every variable, so that TensorFlow itself keeps later users of one behind it."""
    if op.type != "NoOp" or not any(op is gate for gate in _gates(op.graph)):
        return False
    known = len(writes)
    writes.update(t for other in op.graph.get_operations() for t in other.outputs if t.dtype == tf.resource)
    return len(writes) > known
