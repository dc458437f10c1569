"""Reduces the gradients of one optimizer's parameters while backward still runs.

One step as this file sees it. Each parameter is a `Slot`. Backward calls a hook once the parameter's gradient is
accumulated; after as many passes as announced the gradient is submitted and reduced in place. When backward ends,
whatever is missing is filled in (a parameter that this rank did not use counts as zero) and everything is waited
for, so that code between backward and step (clipping, a gradient scaler, norms in a log) sees reduced gradients.
`reset` ends the step.

What may be unequal among ranks: the order of gradients, and which parameters were used. What must be equal: the
number of backward passes in a step, and which parameters require gradients. Ranks learn in a small vote whether a
parameter's gradients are sparse, and leave out parameters that no rank has used so far.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.checks.parameter_lists import told_by_name
from sirtaki.native import core
from sirtaki.reduce_ops import Average
from sirtaki.torch.backward import current_task, tell_the_end
from sirtaki.torch.buckets import bucketed
from sirtaki.torch.kinds import learn_kinds
from sirtaki.torch.optimizer_options import Options
from sirtaki.torch.sending import finish, send
from sirtaki.torch.sparse import SparseReduction
from sirtaki.torch.units import (
    DENSE,
    FILLED,
    OPEN,
    REDUCED,
    SENT,
    SPARSE,
    UNKNOWN,
    Slot,
    Unit,
    rows_of,
)

# Which reducer has a parameter's hook, by the parameter's id; a reducer keeps its parameters alive until it closes.
_owners: dict[int, weakref.ref[GradientReducer]] = {}


class GradientReducer:
    """Owns the hooks on the parameters until `close`. Never refers to the optimizer, so that it can die."""

    def __init__(self, groups: Sequence[dict[str, Any]], options: Options) -> None:
        self._options = options
        self._group = options.process_set.process_set_id
        self._how = options.reduction()
        self._step = core.GradientStep(self._on_gradient, self._send, options.backward_passes_per_step)
        self._units: list[Unit] = []
        self._slots: dict[int, Slot] = {}
        self._unknown: list[Slot] = []  # whose kind is
        self._hooks: dict[int, Any] = {}
        self._frozen: list[tuple[torch.Tensor, str]] = []
        self._tasks: set[int] = set()  # backward calls under way, by autograd's number
        self._is_new = True  # nothing has been completed, not even in part, since the last step
        self._completions = 0  # since the last step
        self._buckets = not options.groups and not options.group_count  # are there still some to be made?
        self._votes = 0
        self._announced: set[str] = set()
        self._seen = 0
        self.adopt(groups)

    # Which parameters.

    def adopt(self, groups: Sequence[dict[str, Any]]) -> None:
        """Takes in parameters of the optimizer's groups that are new or no longer frozen."""
        if sum(len(group["params"]) for group in groups) != self._seen:
            parameters = [parameter for group in groups for parameter in group["params"]]
            new = list(enumerate(parameters))[self._seen :]
            self._seen = len(parameters)
            self._frozen += [(parameter, self._options.name_of(number)) for number, parameter in new]
        if not self._frozen:
            return
        awake = [entry for entry in self._frozen if entry[0].requires_grad]
        self._frozen = [entry for entry in self._frozen if not entry[0].requires_grad]
        slots = [Slot(parameter, name) for parameter, name in awake]
        for slot in slots:
            self._own(slot)
        self._unknown += slots
        self._units += self._units_of(slots)

    def _own(self, slot: Slot) -> None:
        """Takes the parameter over from an earlier optimizer, which finds its gradient reduced from now on."""
        key = id(slot.parameter)
        earlier = _owners.get(key)
        owner = earlier() if earlier is not None else None
        if owner is not None:
            owner._release(key)
        _owners[key] = weakref.ref(self)
        self._slots[key] = slot
        self._hooks[key] = slot.parameter.register_post_accumulate_grad_hook(slot)

    def _release(self, key: int) -> None:
        self._hooks.pop(key).remove()
        slot = self._slots.pop(key)
        slot.unit.remove(slot, self._step.passes)
        self._unknown = [other for other in self._unknown if other is not slot]
        self._units = [unit for unit in self._units if unit.slots]

    def _units_of(self, slots: list[Slot]) -> list[Unit]:
        by_parameter = {id(slot.parameter): slot for slot in slots}
        units, grouped = [], set()
        groups = self._options.grouped(slots)
        for number, parameters in enumerate(groups):
            members = [by_parameter[id(p)] for p in parameters if id(p) in by_parameter]
            grouped.update(id(slot) for slot in members)
            if members:
                units.append(Unit(self._step, members, f"allreduce.{members[0].name}.group{number + 1}of{len(groups)}"))
        units += [Unit(self._step, [slot], f"allreduce.{slot.name}") for slot in slots if id(slot) not in grouped]
        return units

    def close(self) -> None:
        """Removes the hooks."""
        for key, hook in self._hooks.items():
            hook.remove()
            _owners.pop(key, None)
        self._hooks.clear()

    def set_passes(self, passes: int) -> None:
        self._step.passes = passes

    # During backward.

    def _on_gradient(self, slot: Slot) -> None:
        """What a hook does that meets anything but the usual: see bindings/core/gradients.h."""
        step = self._step
        if not step.listening:
            self._begin_backward()
        if slot.unit.state:
            self._gradient_again(slot)
        slot.fired += 1
        if slot.fired < step.passes:
            return
        if slot.fired > step.passes:
            raise AssertionError(self._too_many(slot))
        step.full = True
        unit = slot.unit
        unit.ready += 1
        if unit.ready == len(unit.slots):
            self._send(unit)

    def _begin_backward(self) -> None:
        task = current_task()
        if task not in self._tasks:
            self._tasks.add(task)
            self._step.site = call_site()
            tell_the_end(self._step, self._backward_ended, self._begin_backward)

    def _backward_ended(self) -> None:
        self._tasks.clear()
        if self._step.full:
            self.complete()
        self._step.site = ""

    def _gradient_again(self, slot: Slot) -> None:
        """A gradient for a parameter whose reduction of this step is over."""
        unit = slot.unit
        if unit.state == FILLED:
            # Another backward of this step reached a parameter that the first one did not.
            unit.state, unit.ready = OPEN, 0
            return
        if unit.state == REDUCED and unit.bucket and not slot.fired:
            self._units.append(unit.without(slot))
            return
        if unit.state == SENT or unit.has_reduced(slot):
            raise AssertionError(self._too_many(slot))
        if self._options.op != Average and self._may_keep_sums():
            raise AssertionError(self._too_many(slot))
        self._reopen()  # the program has dropped the gradients of a step that it did not take

    def _may_keep_sums(self) -> bool:
        """Whether sums of this step may be among what is sent next, which would count them once for each rank.

        With create_graph, backward adds to a gradient by making another one.
        """
        return torch.is_grad_enabled() or any(s.unit.has_reduced(s) for s in self._slots.values())

    def _too_many(self, slot: Slot) -> str:
        return (
            f"the gradient of {slot.name} was computed more than backward_passes_per_step = {self._step.passes} times "
            "before step(). Call step() or zero_grad() in between, or increase backward_passes_per_step to accumulate"
        )

    # Sending.

    def _send(self, unit: Unit) -> None:
        if len(unit.slots) == 1 and not self._options.sparse_as_dense and self._send_sparse(unit):
            return
        send(unit, self._how, self._group, self._options.compression)
        unit.times += 1
        unit.state = SENT

    def _send_sparse(self, unit: Unit) -> bool:
        """True if the gradient goes, or will go after the vote, as a sparse tensor."""
        slot = unit.slots[0]
        if slot.kind == DENSE:
            return False
        grad = slot.parameter.grad
        if slot.kind == UNKNOWN and (grad is None or not grad.is_sparse):
            return False
        if slot.kind == SPARSE:
            name = slot.name if not unit.times else f"{slot.name}.pass{unit.times + 1}"
            op, process_set = self._options.op, self._options.process_set
            slot.sparse = SparseReduction(rows_of(slot), name, op, process_set, self._announced)
            unit.times += 1
            unit.state = SENT
        return True

    # The end of a step.

    def complete(self) -> None:
        """Submits what is missing and waits for everything; afterwards all gradients are reduced."""
        step = self._step
        self._is_new = False
        if self._unknown or not self._finish_prepared():
            self._send_the_rest()
        if not step.listening:
            step.site = ""
        step.full = step.touched = False
        self._completions += 1
        core.end_step()

    def _finish_prepared(self) -> bool:
        """The usual end of a step: every unit was sent as prepared. False if not, and then nothing is done."""
        try:
            finished = core.finish_units(self._units)
            if finished not in (True, False):
                raise RuntimeError(_changed(finished))
        except Exception:
            self.reset()
            raise
        return finished

    def _send_the_rest(self) -> None:
        step = self._step
        if not step.site:
            step.site = call_site()
        if self._unknown:
            self._vote()
        filled = []
        for unit in self._units:
            if unit.state == OPEN and any(s.kind and s.parameter.requires_grad for s in unit.slots):
                if not any(slot.fired for slot in unit.slots):
                    filled.append(unit)
                self._send(unit)
        self._wait()
        for unit in filled:
            unit.state = FILLED

    def synchronize(self) -> None:
        """Completes the step unless the end of backward has done so."""
        if self._step.full or not self._completions or self.unreduced() is not None:
            self.complete()

    def _vote(self) -> None:
        name = f"parameters from {self._unknown[0].name} on that have gradients, vote {self._votes}"
        self._votes += 1
        with told_by_name(lambda: [slot.name for slot in self._slots.values()], self._group):
            learn_kinds(self._unknown, name, self._group, self._options.sparse_as_dense)
        self._unknown = [slot for slot in self._unknown if slot.kind == UNKNOWN]

    def _wait(self, given_up: bool = False) -> None:
        """Waits for all that was sent, also if one of them fails; then raises the first failure."""
        failure: BaseException | None = None
        sent = [unit for unit in self._units if unit.state == SENT]
        sparse = [unit for unit in sent if unit.slots[0].sparse is not None]
        for step, units in ((self._second_phase, sparse), (self._finish, sent)):
            for unit in units:
                try:
                    changed = step(unit)
                except Exception as error:
                    failure = failure or error
                else:
                    if changed is not None and not given_up:
                        failure = failure or RuntimeError(_changed(changed))
        if failure is not None:
            self.reset()
            raise failure

    def _second_phase(self, unit: Unit) -> None:
        unit.slots[0].sparse.start_second_phase()

    def _finish(self, unit: Unit) -> Slot | None:
        """A slot whose gradient is not the reduced one."""
        if unit.slots[0].sparse is None:
            return finish(unit)
        self._finish_sparse(unit)
        return None

    def _finish_sparse(self, unit: Unit) -> None:
        slot = unit.slots[0]
        slot.parameter.grad = slot.sparse.result().to(slot.parameter.dtype)
        slot.sparse, unit.state = None, REDUCED
        slot.reduced = slot.parameter.grad

    def drain(self) -> None:
        """Waits for what is under way without filling in what is missing; the step is given up."""
        if self._step.touched or not self._is_new:
            self._wait(given_up=True)
            self.reset()

    def reset(self) -> None:
        """The step is over: the next gradients belong to a new one."""
        if self._is_new and not self._step.touched:
            return
        if self._buckets and self._completions:
            # A step with several completions has parts that must not wait for each other.
            if self._completions == 1:
                self._units = bucketed(self._units)
            self._buckets = False
        self._reopen()

    def _reopen(self) -> None:
        self._tasks.clear()
        for unit in self._units:
            unit.reset()
        self._step.full = self._step.touched = False
        self._completions = 0
        self._is_new = True

    def unreduced(self) -> str | None:
        """The name of a parameter whose gradient this rank has accumulated but not reduced."""
        if not self._step.touched:
            return None
        for slot in self._slots.values():
            if slot.fired and slot.unit.state in (OPEN, SENT):
                return slot.name
        return None


def _changed(slot: Slot) -> str:
    return (
        f"{slot.name}.grad was replaced or changed during backward, after it was handed over to be reduced, so that it "
        "does not hold the reduced gradient. Register hooks that do this before DistributedOptimizer is made, or do it "
        "after backward"
    )
