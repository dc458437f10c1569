"""Checks the program's arguments: tensors, lists of them, variables. Errors show the wrong value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The same dtypes as in the ops' definitions.
_DTYPES = frozenset(
    {
        *(tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
    }
)
_REMEDIES = {
    tf.RaggedTensor: "send its flat_values and its row_lengths(), or to_tensor()",
    tf.SparseTensor: "use tf.IndexedSlices or tf.sparse.to_dense",
    dict: "use grouped_allreduce for several tensors, broadcast_object or allgather_object for anything else",
    list: "use the grouped call for tensors of several shapes",
    tuple: "use the grouped call for tensors of several shapes",
}


def anchor(variable: Any) -> Any:
    """The same object for a Keras variable and the TensorFlow variable in it."""
    return getattr(variable, "handle", variable)


def identity(variable: Any) -> int:
    """The same number for a Keras variable and the TensorFlow variable in it, as long as they exist."""
    return id(anchor(variable))


def to_tensor(value: Any) -> tf.Tensor:
    """A dense tensor of a supported dtype; TypeError for any other value."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"a {_shown(value)} is not a dense tensor; {_remedy(value)}")
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise TypeError(f"cannot make a tensor of {_shown(value)}; {_remedy(value)} ({text:.300})") from error
    if tensor.dtype not in _DTYPES:
        raise TypeError(
            f"tensors of dtype {tensor.dtype.name} cannot be sent, got {_shown(value)}; dtypes are bool, integers of 8 "
            "to 64 bits, float16, bfloat16, float32 and float64; send Python objects by broadcast_object or "
            "allgather_object"
        )
    return tensor


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"


def _remedy(value: Any) -> str:
    found = (remedy for kind, remedy in _REMEDIES.items() if isinstance(value, kind))
    return next(found, "give a tensor, a variable, or numbers")


def check_list(tensors: Any) -> list[Any]:
    """The tensors of a grouped call as a list; ValueError if it is no list or empty."""
    if isinstance(tensors, (tf.Tensor, tf.Variable, tf.IndexedSlices)) or not isinstance(tensors, Sequence):
        raise ValueError(f"a grouped call takes a list of tensors, got {_shown(tensors)}")
    if not tensors:
        raise ValueError("a grouped call takes at least one tensor, got an empty list")
    return list(tensors)


def to_tensors(tensors: Any) -> list[tf.Tensor]:
    """check_list() and to_tensor() for each tensor."""
    return [to_tensor(tensor) for tensor in check_list(tensors)]


def check_variables(variables: Any) -> list[Any]:
    """TensorFlow or Keras variables as a list; ValueError for a single variable or if there is anything else."""
    if hasattr(variables, "assign") or not hasattr(variables, "__iter__"):
        raise ValueError(f"variables must be a list of variables, got {_shown(variables)}")
    listed = list(variables)
    for number, variable in enumerate(listed):
        if not hasattr(variable, "assign"):
            raise ValueError(f"variables[{number}] must be a variable, got {_shown(variable)}")
    return listed
