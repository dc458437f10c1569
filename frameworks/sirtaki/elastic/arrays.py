"""States of variables, whose values are numpy arrays: kept from one save to the next, and sent to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sirtaki import exchange, runtime
from sirtaki.elastic import fingerprints
from sirtaki.elastic.state import ObjectState


def _copied(value: Any, kept: Any) -> Any:
    if kept is None or (kept.shape, kept.dtype) != (value.shape, value.dtype):
        return np.array(value)
    np.copyto(kept, value)
    return kept


def _of_rank(source: int, values: Sequence[Any], own_rank: int) -> list[Any]:
    """The values that the rank `source` passes. Every rank calls it. ValueError if this rank's have other shapes."""
    arrays = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in values]
    form = [(array.shape, array.dtype.name) for array in arrays]
    expected = exchange.broadcast_object(form, source, "elastic.shapes")
    if form != expected:
        differs = next((i for i, entry in enumerate(expected) if form[i : i + 1] != [entry]), len(expected))
        raise ValueError(
            f"rank {own_rank} has {len(form)} variables in its elastic state, and rank {source} has {len(expected)}; "
            f"number {differs} differs: {form[differs : differs + 1]} here, {expected[differs : differs + 1]} there. "
            "All ranks must make the same model"
        )
    same = fingerprints.equal_everywhere([fingerprints.of_array(array) for array in arrays], "elastic.same")
    if own_rank != source:
        arrays = [array if is_same else np.empty_like(array) for array, is_same in zip(arrays, same, strict=True)]
    differ = [array for array, is_same in zip(arrays, same, strict=True) if not is_same]
    if differ:
        exchange.broadcast_arrays(differ, source, "elastic.value")
    return arrays


class VariablesState(ObjectState):
    """A state with variables of TensorFlow or Keras. Subclasses read and write their values, always in one order."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(exchange.broadcast_object, runtime.rank, **kwargs)
        self._kept: list[Any] = []
        self._keep()

    def _read(self) -> list[Any]:
        raise NotImplementedError

    def _write(self, values: Sequence[Any]) -> None:
        raise NotImplementedError

    def _keep(self) -> None:
        """Copies the values into the memory of the last time."""
        values = [np.asarray(value) for value in self._read()]
        before = self._kept if len(self._kept) == len(values) else [None] * len(values)
        self._kept = [_copied(value, kept) for value, kept in zip(values, before, strict=True)]

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        self._write(self._kept)
        super().restore()

    def _receive(self, source: int) -> None:
        self._write(_of_rank(source, self._read(), self._rank()))
        super()._receive(source)
