"""Metrics of an epoch as means over the ranks."""

from __future__ import annotations

import math
from typing import Any

from sirtaki import exchange
from sirtaki.keras.generations import keras
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics of each epoch, in place, by their means over the ranks.

    List it before callbacks that read metrics (ModelCheckpoint, ReduceLROnPlateau ...). Every rank has the same weight,
    whatever its number of examples. ValueError on every rank if the ranks have different metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and (self.process_set.size() or core.size()) > 1:
            logs.update(average_metrics(logs, epoch, self.process_set))


def average_metrics(logs: dict[str, Any], epoch: int, process_set: ProcessSet) -> dict[str, float]:
    """The means of the metrics that are numbers."""
    own = {name: float(value) for name, value in sorted(logs.items()) if _is_number(value)}
    by_rank = exchange.allgather_object(own, f"keras.metrics.{epoch}", require_id(process_set))
    if any(part.keys() != own.keys() for part in by_rank):
        raise ValueError(
            f"the ranks have different metrics at the end of epoch {epoch}: "
            + "; ".join(f"rank {rank}: {', '.join(part) or 'none'}" for rank, part in enumerate(by_rank))
        )
    return {name: _mean([part[name] for part in by_rank]) for name in own}


def _mean(values: list[float]) -> float:
    """The mean of finite numbers; finite even if their sum overflows."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else sum(value / len(values) for value in values)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
