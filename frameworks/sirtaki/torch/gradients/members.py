"""Which parameters a reducer has: adds and releases them as the optimizer's groups change."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from sirtaki.native import core
from sirtaki.torch.gradients.optimizer_options import Options, parameters_in
from sirtaki.torch.gradients.slots import Slot

if TYPE_CHECKING:
    from sirtaki.torch.gradients.reducer import GradientReducer

# The members with a parameter's hook, by the parameter's id. Members keep their parameters alive until they are closed.
_owners: dict[int, weakref.ref[Members]] = {}


class Members:
    """The parameters of one optimizer. A parameter of several optimizers belongs to the latest reducer. The others use
    the gradient that it has reduced.

    groups: the optimizer's. order: a slot for each of their parameters, also if another reducer has the hook. slots:
    those with a hook of this reducer, by the parameter's id.
    """

    def __init__(self, reducer: GradientReducer, groups: list[dict[str, Any]], options: Options) -> None:
        self.groups = groups
        self.order: tuple[Slot, ...] = ()
        self.slots: dict[int, Slot] = {}
        self._reducer = reducer
        self._options = options
        self._hooks: dict[int, Any] = {}
        self._others: list[weakref.ref[Members]] = []  # with hooks on parameters in `order`

    def adopt(self, groups: list[dict[str, Any]]) -> None:
        """Adds the optimizer's parameters that are new or no longer frozen; releases those that it no longer has."""
        self.groups = groups
        if not core.same_parameters(self.order, groups):
            self.adopt_all()

    def adopt_all(self, takes_over: bool = False) -> None:
        """takes_over: also parameters that other reducers have."""
        parameters = parameters_in(self.groups)
        kept = {id(parameter) for parameter in parameters}
        gone = [slot for key, slot in self.slots.items() if key not in kept]
        if gone:
            self._release(gone)
        taken: dict[Members, list[Slot]] = {}
        order: list[Slot] = []
        others: list[Members] = []
        used = {slot.name for slot in self.slots.values()}
        for number, parameter in enumerate(parameters):
            slot, owner = self.slots.get(id(parameter)), _owner_of(parameter)
            if slot is None and owner is not None and not takes_over:
                slot = owner.slots[id(parameter)]
                others.append(owner)
            elif slot is None:
                earlier = self.order[number].name if number < len(self.order) else ""
                slot = Slot(parameter, self._options.unused_name(number, used, None if takes_over else earlier))
                used.add(slot.name)
                self.slots[id(parameter)] = slot
                self._reducer.table.agreed = False
                if owner is not None:
                    taken.setdefault(owner, []).append(slot)
            order.append(slot)
        self.order = tuple(order)
        self._others = [weakref.ref(owner) for owner in dict.fromkeys(others)]
        for owner, slots in taken.items():
            owner._give(slots, self)
        self._wake()

    def _wake(self) -> None:
        """Adds hooks to parameters that require gradients. They wait for their first gradient."""
        woken = []
        for key, slot in self.slots.items():
            parameter = slot.parameter
            _owners[key] = weakref.ref(self)
            if parameter.requires_grad and key not in self._hooks:
                self._hooks[key] = parameter.register_post_accumulate_grad_hook(slot)
            if slot.bucket is None and (parameter.requires_grad or parameter.grad is not None):
                woken.append(slot)
        if woken:
            self._reducer.table.add_waiting(woken)

    def _release(self, slots: Sequence[Slot]) -> None:
        self._reducer.release(slots)
        for slot in slots:
            key = id(slot.parameter)
            del self.slots[key]
            _owners.pop(key, None)
            if (hook := self._hooks.pop(key, None)) is not None:
                hook.remove()

    def _give(self, slots: Sequence[Slot], owner: Members) -> None:
        """Another reducer takes over these parameters. slots: its slots."""
        successors = {id(slot.parameter): slot for slot in slots}
        self._release([self.slots[key] for key in successors])
        self.order = tuple(successors.get(id(slot.parameter), slot) for slot in self.order)
        self._others.append(weakref.ref(owner))

    def others(self) -> list[GradientReducer]:
        """The reducers that have some of the parameters."""
        if not self._others:
            return []
        return [other._reducer for reference in self._others if (other := reference()) is not None]

    def close(self) -> None:
        """Removes the hooks."""
        for key, slot in self.slots.items():
            slot.bucket = None
            if _owner_of(slot.parameter) is self:
                _owners.pop(key)
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self.slots.clear()


def _owner_of(parameter: torch.Tensor) -> Members | None:
    reference = _owners.get(id(parameter))
    owner = reference() if reference is not None else None
    slot = owner.slots.get(id(parameter)) if owner is not None else None
    return owner if slot is not None and slot.parameter is parameter else None
