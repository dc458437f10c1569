"""What all distributed optimizers have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sirtaki.keras.attachment import attachment_of, key_of


class Distributed:
    """Base of what is put in front of an optimizer's own class."""

    _HAS_AGGREGATE_GRAD = True  # Horovod's mark of an optimizer that reduces by itself

    def register_local_var(self, var: Any) -> None:
        """This variable's gradient is not reduced: each rank has its own (see scale_local_gradients)."""
        attachment_of(self).local.add(key_of(self, var))


def is_distributed(optimizer: Any) -> bool:
    return isinstance(optimizer, Distributed)


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Those that an optimizer hands its gradients to."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(getattr(optimizer, "optimizers", ()))


@contextlib.contextmanager
def inner_delegated(optimizer: Any) -> Iterator[None]:
    """While the optimizers within this one get gradients that are reduced already."""
    with contextlib.ExitStack() as stack:
        for inner in inner_optimizers(optimizer):
            if is_distributed(inner):
                stack.enter_context(attachment_of(inner).within_outer())
        yield
