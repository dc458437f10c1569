"""The batches of a serial run of Keras 2 or 3, each rank's part of them, and what must be equal after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sirtaki.exchange import allgather_object
from sirtaki.native import core

SAMPLES = 12  # of one step on all ranks; on each rank count up to 4 a whole number each
STEPS = 5


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """The joined batches of all steps, one after another."""
    random = np.random.default_rng(0)
    return random.standard_normal((steps * SAMPLES, 8, 8, 1)), random.standard_normal((steps * SAMPLES, 5))


def own(array: np.ndarray) -> np.ndarray:
    """This rank's part of each joined batch."""
    size = SAMPLES // core.size()
    return array.reshape(-1, core.size(), size, *array.shape[1:])[:, core.rank()].reshape(-1, *array.shape[1:])


def check_equal(model: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Within the tolerance, and bit-equal on all ranks."""
    for variable, one, other in zip(model.weights, model.get_weights(), expected.get_weights(), strict=True):
        worst = np.abs(one - other).max()
        assert worst < tolerance, (variable.name, worst)
    check_same_on_ranks(model)


def check_same_on_ranks(model: Any) -> None:
    """Bit-equal on all ranks."""
    bits = [weight.tobytes() for weight in model.get_weights()]
    assert all(other == bits for other in allgather_object(bits))
