"""The differences between Keras's backends: each module in this package has the same functions.

Compression                          of the framework's adapter
VARIABLES                            classes of objects with an assignable value: Keras's and the framework's
in_graph()                           whether a graph is traced now, which will run many times
run_outside_graph(function)          runs it now, while a graph is traced
require_alone(process_set)           makes a compiled step of a single rank fail if it later runs with other ranks
kind(gradient)                       NONE, DENSE or SPARSE (sirtaki.keras.agreement)
have_values(variables)               whether they can be read now
zeros(variable, kind)                a gradient that adds nothing
dense(gradient)                      the same gradient, dense
scaled(gradient, factor)
reduce(units, options)               [(name, gradients, variables)] to lists of reduced gradients, all in progress at
                                     once; the gradients of one unit are one request
scatter(units, options)              [(name, rows)] to lists of this rank's parts of the reduced rows
gather(units, options)               [(name, parts)] to lists of all ranks' parts, joined
reduce_max(tensors, name, options)   the largest value on any rank
after_step(check, variables, process_set)  as ParameterCheck.after_step
check_parameters(variables, process_set)
assign_root_values(variables, root, process_set)
failures_of_the_job()                a context that turns the backend's errors of a failed job into HorovodInternalError
allreduce, allgather, broadcast, reducescatter: of values, with NumPy results
"""

from __future__ import annotations

import importlib
from types import ModuleType

from sirtaki.keras.generations import keras

_KNOWN = ("tensorflow", "torch")


def load() -> ModuleType:
    """The module for Keras's current backend. NotImplementedError for others."""
    name = keras.backend.backend()
    if name not in _KNOWN:
        raise NotImplementedError(
            f"sirtaki.keras supports Keras on the backends {' and '.join(_KNOWN)}, but Keras runs on {name!r} here; "
            "choose with the environment variable KERAS_BACKEND before Keras is imported"
        )
    return importlib.import_module(f"sirtaki.keras.backends.{name}_backend")
