"""The names of ops in requests to other ranks.

A label is a uint8 tensor with the request's name in UTF-8. In eager mode it is usually empty, and the core numbers the
calls; so ranks must make unnamed calls in the same order. In a graph every op has a name, which is equal on all ranks
that trace the same program: the names of the functions around it, then the op's own, made unique within its graph.

Numbers that TensorFlow and Keras count through the whole process are left out, since they differ on a rank that traced
more often or made one more layer. These are the ends of functions' names, the name scope around an unnamed op, and the
names of branches and loops. Branches and loops are numbered here within their outer graph, in the order of their first
collectives.
"""

from __future__ import annotations

import functools
import re
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from sirtaki.checks.arguments import checked_name

_NUMBERS = re.compile(r"(_\d+)+$")
_PREFIX = "sirtaki/"
_places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of a branch or loop in its outer graph
_counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # how many an outer graph has


def in_xla() -> bool:
    """Whether a function with jit_compile=True is traced now."""
    graph = framework_ops.get_default_graph
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(graph()))


def refuse_xla() -> None:
    """NotImplementedError while a function with jit_compile=True is traced."""
    if in_xla():
        raise NotImplementedError(
            "Sirtaki's collectives cannot be compiled by XLA. Switch it off: jit_compile=False in tf.function and in "
            "Model.compile; or compile only the part that computes, and call Sirtaki outside of it."
        )


@functools.lru_cache(maxsize=4096)
def _eager_label(name: str) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(list(name.encode()), dtype=tf.uint8)


def label(name: str | None, what: str, ignore_name_scope: bool = False) -> tf.Tensor:
    """The label of an op that is about to be made. what: its name in a graph if the program gave none."""
    if name is not None:
        checked_name(name)
    if tf.executing_eagerly():
        return _eager_label(name or "")
    return tf.constant(list(_unique(name or what, ignore_name_scope or not name).encode()), dtype=tf.uint8)


def _unique(name: str, ignore_name_scope: bool) -> str:
    graph = framework_ops.get_default_graph()
    scope = "" if ignore_name_scope else graph.get_name_scope()
    wanted = f"{scope}/{name}" if scope else name
    with graph.name_scope(None):
        own = graph.unique_name(f"{_PREFIX}{wanted}")[len(_PREFIX) :]
    return "/".join([*functions(graph), own])


def functions(graph: Any) -> list[str]:
    """The names of the functions under trace, outermost first; equal on all ranks."""
    names: list[str] = []
    while graph is not None and hasattr(graph, "outer_graph"):
        names.insert(0, _name(graph))
        graph = graph.outer_graph
    return names


def _name(graph: Any) -> str:
    if not isinstance(graph, ControlFlowFuncGraph):
        return _NUMBERS.sub("", graph.name).removeprefix("__inference_")
    if graph not in _places:
        _places[graph] = _counts.get(graph.outer_graph, 0)
        _counts[graph.outer_graph] = _places[graph] + 1
    kind = type(graph).__name__.strip("_").removesuffix("FuncGraph")
    return f"{kind}{_places[graph]}"


def name_of(made: tf.Tensor) -> str | None:
    """The name in the label of an existing op; None if the core numbers it."""
    value = tf.get_static_value(made)
    return bytes(value.tolist()).decode() if value is not None and value.size else None
