"""Reduces the gradients of one step over the ranks. Used by the tape, the optimizers and the aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import checked_groups, checked_predivide, equal_parts, reduction
from sirtaki.compression import checked_compression
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average
from sirtaki.tensorflow.collectives.allreduce import reduce_dense
from sirtaki.tensorflow.collectives.sparse import reduce_slices
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.gradients.gradient_kinds import alike
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.ops.tensors import identity
from sirtaki.tensorflow.ops.verbs import Reduction


@dataclass
class GradientReducer:
    """How gradients are reduced. The fields are the arguments of DistributedGradientTape, checked by make().

    A gradient that is None on this rank counts as zeros (see sirtaki.tensorflow.gradients.gradient_kinds).
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
        """ValueError for arguments that contradict each other. Predivision changes the order of operations only."""
        factor = checked_predivide(gradient_predivide_factor, op)
        how = Reduction(*reduction(op, 1.0 / factor, factor, process_set))
        count, listed = checked_groups(num_groups, groups, identity)
        return cls(
            how, checked_compression(compression), bool(sparse_as_dense), count, listed, bool(scale_local_gradients)
        )

    def add_local(self, variable: Any) -> None:
        """This rank's gradient of the variable is not reduced. ValueError unless it is a variable or a tensor."""
        if not hasattr(variable, "assign") and not tf.is_tensor(variable):
            raise ValueError(f"local must be a variable or tensor, got {type(variable).__name__} {variable!r:.80}")
        self.local[identity(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        return identity(variable) in self.local

    def takes_part(self) -> bool:
        """Whether this rank belongs to the process set. Before init it counts as a member, and its ops fail."""
        return not core.is_initialized() or core.rank() in core.process_sets().get(self.how.group, [core.rank()])

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], name: str = "gradient") -> list[Any]:
        """The reduced gradients, in the order of the variables. Local ones are divided by the number of ranks.

        A rank outside the process set gets its own gradients back.
        """
        if not self.takes_part():
            return list(grads)
        results = list(grads)
        shared = [i for i, variable in enumerate(variables) if not self.is_local(variable)]
        reduced = self._reduce_shared([grads[i] for i in shared], [variables[i] for i in shared], name)
        for i, result in zip(shared, reduced, strict=True):
            results[i] = result
        if self.scale_local_gradients:
            for i in set(range(len(results))) - set(shared):
                results[i] = self._scaled(results[i])
        return results

    def _scaled(self, grad: Any) -> Any:
        if grad is None:
            return None
        ranks = verbs.query("size", self.how.group)
        if isinstance(grad, tf.IndexedSlices):
            values = grad.values / tf.cast(ranks, grad.values.dtype)
            return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
        return grad / tf.cast(ranks, grad.dtype)

    def _reduce_shared(self, grads: list[Any], variables: list[Any], name: str) -> list[Any]:
        if self.sparse_as_dense:
            grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
        if tf.executing_eagerly() and verbs.known_size(self.how.group) == 1:
            return grads
        grads = alike(grads, variables, self.how.group, self.sparse_as_dense)
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

    def _units(self, places: list[int], variables: list[Any]) -> list[list[int]]:
        """Which gradients form one request. In eager mode all do, because each call waits for its result."""
        if not places:
            return []
        if tf.executing_eagerly():
            return [places]
        if self.group_count:
            return equal_parts(places, self.group_count)
        group_of = {identity(variable): number for number, group in enumerate(self.groups) for variable in group}
        units: dict[Any, list[int]] = {}
        for i in places:
            units.setdefault(group_of.get(identity(variables[i]), ("single", i)), []).append(i)
        return list(units.values())
