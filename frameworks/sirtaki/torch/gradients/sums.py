"""Reduced sums that a program forgot to clear: the next step would sum them again, once for each rank."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from sirtaki.torch.gradients.slots import Slot


class SumsOfLastStep:
    """Refers to the gradients weakly, so that it keeps no memory."""

    def __init__(self) -> None:
        self._sums: list[tuple[Slot, weakref.ref[torch.Tensor], int]] = []

    def note(self, slots: Iterable[Slot]) -> None:
        """Replaces the sums by those of the step that ends, if it has any."""
        self._sums = [
            (slot, weakref.ref(grad), grad._version)
            for slot in slots
            if isinstance(grad := slot.gradient, torch.Tensor) and not grad.is_inference()
        ] or self._sums

    def check_cleared(self) -> None:
        """AssertionError if a gradient still holds its sum. Call it before a step reduces anything; it checks once."""
        sums, self._sums = self._sums, []
        for slot, reference, version in sums:
            grad = slot.parameter.grad
            if grad is not None and grad is reference() and grad._version == version and bool(grad.any()):
                raise AssertionError(
                    f"{slot.name}.grad still holds the sum of the step before. Call zero_grad() between step() and "
                    "backward(), or reduce with op=Average, which leaves equal gradients as they are"
                )
