"""Changes the learning rate from epoch to epoch or from batch to batch."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

from sirtaki.checks.arguments import check_not_negative
from sirtaki.keras import generations
from sirtaki.keras.generations import keras
from sirtaki.native import core


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to initial_lr * multiplier(epoch) from start_epoch on and before end_epoch.

    multiplier: a function of the epoch, or a number: then the rate is initial_lr * multiplier ** (epoch - start_epoch).
    staircase: changes at the beginning of each epoch only; otherwise before every batch, with a fractional epoch.
    momentum_correction: scales the velocities of SGD and RMSprop as the rate changes (Goyal et al. 2017).
    steps_per_epoch: batches of an epoch, if fit() does not know them. The rate is written to logs["lr"]. ValueError
    without initial_lr, and without staircase if the number of batches is unknown.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Callable[[float], float] | float,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        if isinstance(initial_lr, bool) or not isinstance(initial_lr, numbers.Real):
            raise ValueError(f"initial_lr must be a number, got {initial_lr!r}")
        check_not_negative("start_epoch", start_epoch)
        check_not_negative("end_epoch", end_epoch)
        check_not_negative("steps_per_epoch", steps_per_epoch)
        if not callable(multiplier) and not isinstance(multiplier, numbers.Real):
            raise ValueError(f"multiplier must be a function of the epoch or a number, got {multiplier!r}")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}()."
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch
        if self.staircase and self._in_range():
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and self._in_range():
            self._set(self.current_epoch + float(batch) / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = rate_of(self.model.optimizer)

    def _in_range(self) -> bool:
        return self.start_epoch <= self.current_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, rate = rate_of(optimizer), float(self.initial_lr * self.multiplier(epoch))
        optimizer.learning_rate = rate
        if self.momentum_correction and before and rate != before:
            scale_velocity(optimizer, rate / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from initial_lr / size to initial_lr within warmup_epochs, at every batch (Goyal et al. 2017).

    initial_lr: the rate after the warmup, usually one process's rate times the number of ranks. verbose: above 0, rank
    0 prints when the warmup ends.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        check_not_negative("warmup_epochs", warmup_epochs)

        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self.steps_per_epoch  # so that the last batch of the warmup has the full rate
            size = core.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch + 1 == self.end_epoch and core.rank() == 0:
            rate = rate_of(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def rate_of(optimizer: Any) -> float:
    """The current learning rate."""
    return generations.load().rate_of(optimizer)


def scale_velocity(optimizer: Any, factor: float) -> None:
    """Scales the velocities, which are proportional to the learning rate."""
    for variable in generations.load().velocities(optimizer):
        variable.assign(variable * factor)
