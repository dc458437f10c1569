"""What ops are called between the ranks.

A label is a uint8 tensor with the request's name in UTF-8; an empty one lets the core number the calls. In eager mode
that is the rule, so that ranks must make nameless calls in the same order. In a graph every op has a name, which the
ranks must have in common whenever they trace the same program: it is made of the names of the function and of those it
is nested in, without the numbers that TensorFlow adds as it traces (a rank that traced more often has others), and of
what the op is called, made unique within its graph.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util

from sirtaki.arguments import checked_name

_NUMBERS = re.compile(r"(_\d+)+$")
_PREFIX = "sirtaki/"


def refuse_xla() -> None:
    """NotImplementedError while a function with jit_compile=True is traced."""
    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(framework_ops.get_default_graph()):
        raise NotImplementedError(
            "Sirtaki's collectives cannot be compiled by XLA. Switch it off: jit_compile=False in tf.function and in "
            "Model.compile; or compile only the part that computes, and call Sirtaki outside of it."
        )


@functools.lru_cache(maxsize=4096)
def _eager_label(name: str) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(list(name.encode()), dtype=tf.uint8)


def label(name: str | None, what: str, ignore_name_scope: bool = False) -> tf.Tensor:
    """The label of an op that is about to be made. what: what it is called in a graph if it has no name."""
    if name is not None:
        checked_name(name)
    if tf.executing_eagerly():
        return _eager_label(name or "")
    return tf.constant(list(_unique(name or what, ignore_name_scope).encode()), dtype=tf.uint8)


def _unique(name: str, ignore_name_scope: bool) -> str:
    graph = framework_ops.get_default_graph()
    scope = "" if ignore_name_scope else graph.get_name_scope()
    wanted = f"{scope}/{name}" if scope else name
    with graph.name_scope(None):
        own = graph.unique_name(f"{_PREFIX}{wanted}")[len(_PREFIX) :]
    return "/".join([*_functions(graph), own])


def _functions(graph: Any) -> list[str]:
    """The functions that are being traced, the outermost first."""
    names: list[str] = []
    while graph is not None and hasattr(graph, "outer_graph"):
        names.insert(0, _NUMBERS.sub("", graph.name).removeprefix("__inference_"))
        graph = graph.outer_graph
    return names


def name_of(made: tf.Tensor) -> str | None:
    """The name in the label of an op that exists, None if the core numbers it."""
    value = tf.get_static_value(made)
    return bytes(value.tolist()).decode() if value is not None and value.size else None
