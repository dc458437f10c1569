"""Checks whether all ranks hold the same parameters, and finds the first that differs; for every framework.

With SIRTAKI_CHECK_PARAMETERS=N, an adapter whose own code updates the variables checks them every N updates:

    check = ParameterCheck.from_environment()        # with the optimizer; None if the variable is not set
    if check is not None and there are other ranks:  # after each update, on every rank of the process set
        check.after_step(lambda: [Parameter.of(name, array) for ...], process_set_id)

`array`: any value that NumPy converts. The lambda is called only when a comparison is due. Python does not run at each
step of a TensorFlow graph: call sirtaki.tensorflow.parameter_check.after_step(check, variables, process_set_id) there.
It does the same with ops, in eager mode too. A program that updates its variables itself calls its adapter's
check_parameters().
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sirtaki import settings
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.exchange import allgather_bytes

VARIABLE = "SIRTAKI_CHECK_PARAMETERS"


class Parameter(NamedTuple):
    """checksum: of the bytes of the values in row-major order. name: for messages; may differ between ranks."""

    name: str
    shape: tuple[int, ...]
    checksum: int

    @classmethod
    def of(cls, name: str, array: Any) -> Parameter:
        """Makes one from an array, with its CRC-32. Accepts dtypes that other packages add to NumPy (bfloat16)."""
        import numpy

        values = numpy.asarray(array)
        if not values.size:
            return cls(name, values.shape, 0)
        return cls(name, values.shape, zlib.crc32(numpy.ascontiguousarray(values).reshape(-1).view(numpy.uint8)))


def payload(parameters: Sequence[Parameter]) -> bytes:
    """The shapes and checksums that a rank sends to the others."""
    return json.dumps([[list(parameter.shape), parameter.checksum] for parameter in parameters]).encode()


def compare(payloads: Sequence[bytes], names: Sequence[str], when: str = "") -> None:
    """SirtakiInternalError on all ranks unless all payloads are equal. when: for the message, as "after step 4 "."""
    by_rank = [json.loads(part) for part in payloads]
    counts = [len(parameters) for parameters in by_rank]
    if len(set(counts)) > 1:
        raise SirtakiInternalError(f"{when}the ranks hold different numbers of parameters: {counts} by rank")
    differing = [
        number for number, entries in enumerate(zip(*by_rank, strict=True)) if entries.count(entries[0]) != len(entries)
    ]
    if not differing:
        return
    first = [parameters[differing[0]] for parameters in by_rank]
    shapes = [tuple(shape) for shape, _ in first]
    shown = f"of shape {shapes[0]}" if len(set(shapes)) == 1 else f"of the shapes {shapes} by rank"
    more = f", nor are {len(differing) - 1} more of {counts[0]}" if len(differing) > 1 else ""
    raise SirtakiInternalError(
        f"{when}the parameter {names[differing[0]]} {shown} is not the same on all ranks{more}; checksums by rank: "
        f"{[checksum for _, checksum in first]}. Make the ranks equal before the first step (broadcast_parameters, "
        "broadcast_variables), and change parameters only by reduced gradients"
    )


def check_equal(
    parameters: Sequence[Parameter], process_set: int, what: str = "check_parameters", when: str = ""
) -> None:
    """compare() for all ranks of a process set, each of which must call this. Blocks. what: the call's name in
    messages.
    """
    parts = allgather_bytes(payload(parameters), f"allgather.{what}", process_set)
    compare(parts, [parameter.name for parameter in parameters], when)


def setting() -> str:
    """The value of the variable, unchecked; "0" if it is not set. init() checks that it is equal on all ranks."""
    return settings.look_up("CHECK_PARAMETERS")[1] or "0"


class ParameterCheck:
    """Counts the updates of one optimizer."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.steps = 0

    @classmethod
    def from_environment(cls) -> ParameterCheck | None:
        """None unless the variable is a number above 0; ValueError if it is not a number."""
        text = setting()
        if not text.isdecimal():
            raise ValueError(f"{VARIABLE} must be a number of steps, got {text!r}")
        return cls(int(text)) if int(text) else None

    def is_due(self) -> bool:
        """Counts one update. True if parameters are to be compared after it."""
        self.steps += 1
        return self.steps % self.every == 0

    @property
    def what(self) -> str:
        """Names the comparison in messages, so that a rank without the setting sees why the others wait."""
        return f"{VARIABLE}={self.every}"

    @property
    def when(self) -> str:
        return f"after step {self.steps} "

    def after_step(self, parameters: Callable[[], Sequence[Parameter]], process_set: int) -> None:
        """Call it after each update. SirtakiInternalError on every rank names the first parameter that differs."""
        if self.is_due():
            check_equal(parameters(), process_set, self.what, self.when)
