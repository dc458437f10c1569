"""Collectives on values, with results as tensors of the backend; and functions that make variables equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sirtaki import exchange
from sirtaki.checks.arguments import checked_root
from sirtaki.compression import Compressor, NoneCompressor
from sirtaki.keras import backends
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Average, choose_op


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """postscale * op(prescale * value of each rank), of the same shape and dtype. op is Average by default.

    value: a number (float: float32), NumPy array, tensor or variable. This and the next functions return tensors of the
    backend.

    >>> float(hvd.allreduce(3.0))
    3.0
    """
    return backends.load().allreduce(
        value,
        name=name,
        op=choose_op(average, op),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The values of all ranks, joined along dimension 0.

    >>> np.asarray(hvd.allgather(np.array([1.0, 2.0]))).tolist()
    [1.0, 2.0]
    """
    return backends.load().allgather(value, name=name, process_set=process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The root's value on every rank; shapes and dtypes must be equal.

    >>> np.asarray(hvd.broadcast(np.array([1, 2]), root_rank=0)).tolist()
    [1, 2]
    """
    return backends.load().broadcast(value, root_rank, name=name, process_set=process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's rows of the reduced value.

    >>> np.asarray(hvd.reducescatter(np.array([1.0, 2.0]))).tolist()  # on one rank: all rows
    [1.0, 2.0]
    """
    return backends.load().reducescatter(value, name=name, op=op, process_set=process_set)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites each variable with the root's value; all are sent concurrently. For programs without fit().

    variables: Keras variables or the backend's, with the same number, shapes and dtypes on every rank.

    >>> hvd.broadcast_variables([keras.Variable([1.0])], root_rank=0)
    """
    root = checked_root(root_rank)
    _check_list(variables)
    _check_same_count(variables, require_id(process_set))
    if variables:
        backends.load().assign_root_values(list(variables), root, process_set)


def _check_list(variables: Sequence[Any]) -> None:
    if not isinstance(variables, (list, tuple)):
        raise ValueError(f"variables must be a list of variables, got {type(variables).__name__} {variables!r:.80}")
    for number, variable in enumerate(variables):
        if not isinstance(variable, backends.load().VARIABLES):
            raise ValueError(f"variables[{number}] must be a variable, got {type(variable).__name__} {variable!r:.80}")


def _check_same_count(variables: Sequence[Any], group: int) -> None:
    parts = exchange.allgather_bytes(str(len(variables)).encode(), "allgather.keras.number_of_variables", group)
    counts = [int(part) for part in parts]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the ranks have different numbers of variables to broadcast: {counts} by rank; their models or optimizers "
            "differ, or not all of them are built"
        )


def check_parameters(variables: Sequence[Any], process_set: ProcessSet = global_process_set) -> None:
    """Compares the ranks' values bit by bit, by checksums. Blocks until all ranks of the set have called it.

    variables: Keras variables or the backend's, the same on every rank. HorovodInternalError on every rank names the
    first variable that differs.

    >>> hvd.check_parameters([keras.Variable([1.0])])
    """
    _check_list(variables)
    backends.load().check_parameters(list(variables), process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Keras has no global variables: always a RuntimeError that says what to use."""
    raise RuntimeError(
        f"broadcast_global_variables({root_rank}) needs the global variables of TensorFlow 1, which Keras does not "
        "have; give fit() a BroadcastGlobalVariablesCallback, or call broadcast_variables(model.weights, root_rank)"
    )
