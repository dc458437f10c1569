"""Changes two places in Keras itself for distributed optimizers; the same in Keras 2 and 3.

Under mixed_float16, compile() wraps an optimizer in a LossScaleOptimizer, which would decide by one rank's gradients
whether to take a step. Keras 3 turns XLA on if there is a GPU, but XLA cannot compile collectives.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Any

from sirtaki.keras.attachment import attachment_of
from sirtaki.keras.distributed import is_distributed

_log = logging.getLogger("sirtaki.keras")
_installed = False


def install(loss_scales: Iterable[type], trainer: type) -> None:
    """Once in a process, with the first distributed optimizer. trainer: the base class of models with jit_compile."""
    global _installed
    if _installed:
        return
    _installed = True
    for kind in loss_scales:
        _wrap_loss_scale(kind)
    _wrap_jit_compile(trainer)


def _wrap_loss_scale(kind: Any) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        make(self, inner_optimizer, *args, **kwargs)
        if is_distributed(inner_optimizer) and not is_distributed(self):
            from sirtaki.keras.optimizer import convert_outer

            convert_outer(self, inner_optimizer)

    kind.__init__ = made


def _wrap_jit_compile(trainer: Any) -> None:
    """Keras reads jit_compile when it is about to compile a step, however it was set."""
    plain = trainer.jit_compile

    def jit_compile(self: Any) -> bool:
        wanted = plain.fget(self)
        optimizer = getattr(self, "optimizer", None)
        if wanted and is_distributed(optimizer) and attachment_of(optimizer).has_peers():
            _explain(self)
            self._jit_compile = False
            return False
        return wanted

    trainer.jit_compile = property(jit_compile, plain.fset, doc=plain.__doc__)


def _explain(model: Any) -> None:
    _log.warning(
        "%s trains without jit_compile: XLA cannot compile the collectives of its distributed optimizer (with one rank "
        "it would be compiled)",
        getattr(model, "name", model),
    )
