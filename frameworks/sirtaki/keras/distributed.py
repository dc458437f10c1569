"""What all distributed optimizers have in common."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from sirtaki.keras.attachment import attachment_of, checked_key


class Distributed:
    """Base of the class in front of an optimizer's own class."""

    _HAS_AGGREGATE_GRAD = True  # Horovod's flag for an optimizer that reduces by itself

    def get_config(self) -> dict[str, Any]:
        """The wrapped class's configuration. Warns of options that copies, files and from_config() therefore lose."""
        attachment = attachment_of(self)
        if attachment.local or attachment.groups:
            warnings.warn(
                f"the configuration of a distributed {type(self).__name__} does not contain local variables and groups "
                "of variables, nor do its files and copies. Pass them to an optimizer made from it, by "
                "register_local_var() and DistributedOptimizer(optimizer, groups=...); else it reduces all gradients",
                stacklevel=2,
            )
        return super().get_config()

    def register_local_var(self, var: Any) -> None:
        """Does not reduce this variable's gradient: each rank keeps its own (see scale_local_gradients)."""
        attachment_of(self).local.add(checked_key(self, var))


def is_distributed(optimizer: Any) -> bool:
    return isinstance(optimizer, Distributed)


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers to which this optimizer passes its gradients."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(getattr(optimizer, "optimizers", ()))


@contextlib.contextmanager
def inner_delegated(optimizer: Any) -> Iterator[None]:
    """While it is active, the inner optimizers get gradients that are reduced already."""
    with contextlib.ExitStack() as stack:
        for inner in inner_optimizers(optimizer):
            if is_distributed(inner):
                stack.enter_context(attachment_of(inner).within_outer())
        yield
