"""TorchState: models, optimizers, samplers and Python objects of a training loop."""

from __future__ import annotations

from typing import Any

import torch

from sirtaki import exchange, runtime
from sirtaki.elastic.state import ObjectState
from sirtaki.torch.elastic.handlers import SamplerStateHandler, StateHandler, handler_for


class TorchState(ObjectState):
    """Each argument becomes an attribute. Models, optimizers and ElasticSamplers keep their object in restore() and
    sync(), which change its content. Other values must be picklable.

    >>> model = torch.nn.Linear(3, 1)
    >>> state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epoch=0)
    >>> state.epoch = 1
    >>> state.restore()
    >>> state.epoch
    0
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer} | kwargs
        handlers = {name: handler for name, value in given.items() if (handler := handler_for(value)) is not None}
        self.__dict__["_handlers"] = handlers
        for name, handler in handlers.items():
            self.__dict__[name] = handler.value
        for name in ("model", "optimizer"):
            if name not in handlers and given[name] is None:
                self.__dict__[name] = given.pop(name)
        objects = {name: value for name, value in given.items() if name not in handlers}
        super().__init__(exchange.broadcast_object, runtime.rank, **objects)

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self._handlers.get(name)
        if handler is not None and value is not handler.value:
            handler.set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def reset(self) -> None:
        """Divides the examples of the samplers among the new ranks."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()

    def _receive(self, source: int) -> None:
        for handler in self._handlers.values():
            handler.source = source
            handler.sync()
        super()._receive(source)
