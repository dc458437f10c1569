"""Saves the best model of a training to a file whose name is set later."""

from __future__ import annotations

from typing import Any

from sirtaki.keras.generations import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """keras.callbacks.ModelCheckpoint with save_best_only. Set `filepath` before fit()."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=f"unset{ending}",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """ValueError if `filepath` is not set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath; set it before fit()")
        super().on_train_begin(logs)
