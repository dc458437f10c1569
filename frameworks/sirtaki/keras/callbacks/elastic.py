"""Keep the state of an elastic job up to date in fit(); `sirtaki.keras.elastic` has them."""

from __future__ import annotations

from typing import Any

from sirtaki.keras.generations import keras


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after every batches_per_commit batches, and at the end of each epoch.

    List it after the other callbacks, so that it commits what these have changed.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self._left = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps in state.batch how many batches of the epoch are done; 0 when it is over.

    A callback cannot shorten an epoch of fit(). To go on within an epoch, train one epoch in each fit(), and give it
    steps_per_epoch=all - state.batch.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = state.batch  # of the epoch in which fit() begins

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._done_before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._done_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._done_before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps in state.epoch how many epochs are done. Give fit() only those that are left: epochs=all - state.epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = state.epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._done_before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self._done_before + epoch + 1
