"""How a TorchState keeps models, optimizers and samplers."""

from __future__ import annotations

from typing import Any

import torch

from sirtaki import exchange
from sirtaki.elastic import fingerprints
from sirtaki.torch.elastic.fingerprint import of_state, of_tensor
from sirtaki.torch.elastic.kept_copy import KeptCopy
from sirtaki.torch.elastic.sampler import ElasticSampler
from sirtaki.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Keeps one value of a state. A handler is made with the value, and saves it then.

    sync(): gives all ranks the value of the rank `source`, and saves nothing; the state calls save() after all sync().
    """

    source = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Keeps another value from now on."""
        self.value = value
        self.save()


class _KeptStateDict(StateHandler):
    """For values with state_dict() and load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._kept = KeptCopy()
        self.save()

    def save(self) -> None:
        self._kept.save(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._kept.written_into(self.value.state_dict()))


class ModelStateHandler(_KeptStateDict):
    """Keeps parameters and buffers of a module, and its get_extra_state()."""

    def restore(self) -> None:
        present = self.value.state_dict()
        kept = self._kept.written_into(present)
        same = kept.keys() == present.keys() and all(isinstance(entry, torch.Tensor) for entry in kept.values())
        if not same or any(kept[name].data_ptr() != present[name].data_ptr() for name in kept):
            self.value.load_state_dict(kept)  # as a rule all is in its place already

    def sync(self) -> None:
        state = self.value.state_dict()
        tensors = {name: entry for name, entry in state.items() if isinstance(entry, torch.Tensor)}
        same = fingerprints.equal_everywhere([of_tensor(entry) for entry in tensors.values()], "elastic.model")
        differ = {name: entry for (name, entry), is_same in zip(tensors.items(), same, strict=True) if not is_same}
        if differ:
            broadcast_parameters(differ, self.source)
        others = {name: entry for name, entry in state.items() if name not in tensors}  # of get_extra_state()
        if others:
            self.value.load_state_dict(state | exchange.broadcast_object(others, self.source, "elastic.extra_state"))


class OptimizerStateHandler(_KeptStateDict):
    """ValueError for an optimizer whose state is sharded: the part of a rank that dies would be lost."""

    def __init__(self, value: torch.optim.Optimizer) -> None:
        if getattr(getattr(value, "_distributed", None), "sharding", None) is not None:
            raise ValueError(
                "an elastic state cannot keep an optimizer with shard_optimizer_state=True, because the part of a rank "
                "that dies would be lost; use an optimizer that is not sharded"
            )
        super().__init__(value)

    def sync(self) -> None:
        if not all(fingerprints.equal_everywhere([of_state(self.value.state_dict())], "elastic.optimizer")):
            broadcast_optimizer_state(self.value, self.source)


class SamplerStateHandler(_KeptStateDict):
    """Keeps which examples of the epoch have been processed."""

    def sync(self) -> None:
        self.value.load_state_dict(exchange.broadcast_object(self.value.state_dict(), self.source, "elastic.sampler"))


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The handlers, as (class of the values, class of their handlers). The first that fits a value is taken."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """For states that are made later."""
    global _registry
    _registry = registry


def handler_for(value: Any) -> StateHandler | None:
    """A new handler; None for a value that is kept as a Python object."""
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
