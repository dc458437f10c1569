"""The gradients of one step, reduced over the ranks. Used by the tape, the optimizers and the aggregation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from sirtaki.arguments import checked_groups, checked_predivide, reduction
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average, Max
from sirtaki.tensorflow import raw
from sirtaki.tensorflow.collectives.allreduce import reduce_dense
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.raw import Reduction
from sirtaki.tensorflow.sparse import reduce_slices
from sirtaki.tensorflow.tensors import identity


@dataclass
class GradientReducer:
    """How gradients are reduced. Fields as the arguments of DistributedGradientTape, checked by make().

    A gradient that is None on this rank counts as zeros. In eager mode the ranks first tell each other what they have,
    so that one that is None everywhere stays None; a graph is built before that can be known, and gives zeros.
    """

    how: Reduction
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    group_count: int = 0
    groups: list[list[Any]] = field(default_factory=list)
    scale_local_gradients: bool = True
    local: dict[int, Any] = field(default_factory=dict)  # variables that are not reduced, by their identity

    @classmethod
    def make(
        cls,
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> GradientReducer:
        """ValueError for what does not fit together; the predivision changes the order of operations only."""
        factor = checked_predivide(gradient_predivide_factor, op)
        how = Reduction(*reduction(op, 1.0 / factor, factor, process_set))
        count, listed = checked_groups(num_groups, groups, identity)
        return cls(how, compression, bool(sparse_as_dense), count, listed, bool(scale_local_gradients))

    def add_local(self, variable: Any) -> None:
        """The gradient of this variable stays this rank's own."""
        self.local[identity(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        return identity(variable) in self.local

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], name: str = "gradient") -> list[Any]:
        """The reduced gradients, in the order of the variables; local ones are divided by the number of ranks."""
        results = list(grads)
        shared = [i for i, variable in enumerate(variables) if not self.is_local(variable)]
        chosen = [self._filled(grads[i], variables[i]) for i in shared]
        for i, result in zip(shared, self._reduce_shared(chosen, [variables[i] for i in shared], name), strict=True):
            results[i] = result
        if self.scale_local_gradients:
            for i in set(range(len(results))) - set(shared):
                results[i] = self._scaled(results[i])
        return results

    def _filled(self, grad: Any, variable: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices) and self.sparse_as_dense:
            return tf.convert_to_tensor(grad)
        if grad is None and not tf.executing_eagerly() and tf.as_dtype(variable.dtype).is_floating:
            return tf.zeros_like(variable)
        return grad

    def _scaled(self, grad: Any) -> Any:
        if grad is None:
            return None
        ranks = raw.ask("size", self.how.group)
        if isinstance(grad, tf.IndexedSlices):
            values = grad.values / tf.cast(ranks, grad.values.dtype)
            return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
        return grad / tf.cast(ranks, grad.dtype)

    def _reduce_shared(self, grads: list[Any], variables: list[Any], name: str) -> list[Any]:
        if tf.executing_eagerly():
            if raw.known_size(self.how.group) == 1:
                return grads
            grads = self._agreed(grads, variables)
        results = list(grads)
        sparse = [i for i, grad in enumerate(grads) if isinstance(grad, tf.IndexedSlices)]
        for i in sparse:
            called = self._called(f"{name}.{i}")
            results[i] = reduce_slices(grads[i], called, self.how, self.compression, ignore_name_scope=True)
        dense = [i for i, grad in enumerate(grads) if grad is not None and i not in sparse]
        for number, unit in enumerate(self._units(dense, variables)):
            called = self._called(f"{name}.{unit[0]}" if len(unit) == 1 else f"{name}.group{number}")
            own = [grads[i] for i in unit]
            reduced = reduce_dense(own, called, self.how, self.compression, ignore_name_scope=True)
            for i, result in zip(unit, reduced, strict=True):
                results[i] = result
        return results

    def _called(self, name: str) -> str | None:
        return None if tf.executing_eagerly() else name

    def _agreed(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """What each gradient is on the ranks together: dense if it is dense on any, else slices, else None."""
        if not grads:
            return grads
        kinds = [[grad is not None and not isinstance(grad, tf.IndexedSlices) for grad in grads]]
        kinds.append([isinstance(grad, tf.IndexedSlices) for grad in grads])
        (known,) = raw.allreduce([tf.cast(kinds, tf.uint8)], None, Reduction(int(Max), group=self.how.group))
        is_dense, is_sparse = known.numpy().tolist()
        result = []
        for grad, variable, dense, sparse in zip(grads, variables, is_dense, is_sparse, strict=True):
            if dense:
                grad = tf.zeros_like(variable) if grad is None else tf.convert_to_tensor(grad)
            elif sparse and grad is None:
                grad = _no_rows(variable)
            result.append(grad)
        return result

    def _units(self, places: list[int], variables: list[Any]) -> list[list[int]]:
        """Which gradients travel as one request. In eager mode all do: each call waits for its result."""
        if not places:
            return []
        if tf.executing_eagerly():
            return [places]
        if self.group_count:
            parts = min(self.group_count, len(places))
            size, larger = divmod(len(places), parts)
            bounds = [part * size + min(part, larger) for part in range(parts + 1)]
            return [places[a:b] for a, b in itertools.pairwise(bounds)]
        group_of = {identity(variable): number for number, group in enumerate(self.groups) for variable in group}
        units: dict[Any, list[int]] = {}
        for i in places:
            units.setdefault(group_of.get(identity(variables[i]), ("single", i)), []).append(i)
        return list(units.values())


def _no_rows(variable: Any) -> tf.IndexedSlices:
    shape = tf.shape(variable, tf.int64)
    values = tf.zeros([0, *variable.shape[1:]], variable.dtype)
    return tf.IndexedSlices(values, tf.zeros([0], tf.int64), shape)
