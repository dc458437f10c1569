"""The checked arguments of DistributedOptimizer; knows no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sirtaki.checks.arguments import checked_passes, checked_predivide
from sirtaki.compression import checked_compression
from sirtaki.process_sets import ProcessSet, require_id
from sirtaki.reduce_ops import Average, ReduceOp, Sum, checked_op


@dataclass(frozen=True)
class Options:
    """name: prefix of the reductions' names. group_count: number of groups of about equal size, 0 for none."""

    name: str
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    group_count: int
    process_set: ProcessSet
    scale_local_gradients: bool
    sharded: bool

    @property
    def scales(self) -> tuple[float, float]:
        """(prescale, postscale). Predivision changes the order of operations, not the result."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def passes_factor(self) -> int:
        """Keras averages accumulated gradients. This factor makes sums of them, unless averages were asked for."""
        return 1 if self.average_aggregated_gradients else self.backward_passes_per_step


def checked_options(
    name: str | None,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    group_count: int,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    shard_optimizer_state: bool,
) -> Options:
    """ValueError for what is wrong, with the value."""
    if name is not None and not isinstance(name, str):
        raise ValueError(f"name must be a string or None, got {name!r}")
    if checked_op(op) not in (Average, Sum):
        raise ValueError(f"op currently only supports Average and Sum, got {ReduceOp(op)!r}")
    require_id(process_set)
    return Options(
        name=name or "",
        compression=checked_compression(compression),
        sparse_as_dense=bool(sparse_as_dense),
        gradient_predivide_factor=checked_predivide(gradient_predivide_factor, op),
        op=int(op),
        backward_passes_per_step=checked_passes(backward_passes_per_step),
        average_aggregated_gradients=bool(average_aggregated_gradients),
        group_count=group_count,
        process_set=process_set,
        scale_local_gradients=bool(scale_local_gradients),
        sharded=shard_optimizer_state,
    )
