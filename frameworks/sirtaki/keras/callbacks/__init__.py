"""Callbacks for distributed training; every rank passes them to fit()."""

from sirtaki.keras.callbacks.best_model import BestModelCheckpoint
from sirtaki.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from sirtaki.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from sirtaki.keras.callbacks.metric_average import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
