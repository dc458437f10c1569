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

import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from sirtaki.call_site import call_site
from sirtaki.reduce_ops import Sum
from sirtaki.torch import raw
from sirtaki.torch.buckets import bucketed
from sirtaki.torch.handles import synchronize
from sirtaki.torch.optimizer_options import Options
from sirtaki.torch.sending import finish, submit, wires_of
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
    is_same,
    rows_of,
)

# Which reducer has a parameter's hook, by the parameter's id; a reducer keeps its parameters alive until it closes.
_owners: dict[int, weakref.ref[GradientReducer]] = {}


class GradientReducer:
    """Owns the hooks on the parameters until `close`. Never refers to the optimizer, so that it can die."""

    def __init__(self, parameters: Sequence[torch.Tensor], options: Options) -> None:
        self._options = options
        self._group = options.process_set.process_set_id
        self._passes = options.backward_passes_per_step
        self._how = options.reduction()
        self._units: list[Unit] = []
        self._slots: dict[int, Slot] = {}
        self._hooks: dict[int, Any] = {}
        self._frozen: list[tuple[torch.Tensor, str]] = []
        self._tasks: set[int] = set()  # backward calls under way, by autograd's number
        self._site = ""
        self._full = False  # some parameter has had all its passes since the last completion
        self._completed = False
        self._completions = 0  # since the last step
        self._buckets = not options.groups and not options.group_count  # are there still some to be made?
        self._votes = 0
        self._announced: set[str] = set()
        self._seen = 0
        self.adopt(parameters)

    # Which parameters.

    def adopt(self, parameters: Sequence[torch.Tensor]) -> None:
        """Takes in parameters that are new or no longer frozen."""
        if len(parameters) != self._seen:
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
        hook = partial(self._on_gradient, slot)
        self._hooks[key] = slot.parameter.register_post_accumulate_grad_hook(hook)

    def _release(self, key: int) -> None:
        self._hooks.pop(key).remove()
        slot = self._slots.pop(key)
        slot.unit.slots = [other for other in slot.unit.slots if other is not slot]
        self._units = [unit for unit in self._units if unit.slots]

    def _units_of(self, slots: list[Slot]) -> list[Unit]:
        by_parameter = {id(slot.parameter): slot for slot in slots}
        units, grouped = [], set()
        groups = self._options.grouped(slots)
        for number, parameters in enumerate(groups):
            members = [by_parameter[id(p)] for p in parameters if id(p) in by_parameter]
            grouped.update(id(slot) for slot in members)
            if members:
                units.append(Unit(members, f"allreduce.{members[0].name}.group{number + 1}of{len(groups)}"))
        units += [Unit([slot], f"allreduce.{slot.name}") for slot in slots if id(slot) not in grouped]
        return units

    def close(self) -> None:
        """Removes the hooks."""
        for key, hook in self._hooks.items():
            hook.remove()
            _owners.pop(key, None)
        self._hooks.clear()

    def set_passes(self, passes: int) -> None:
        self._passes = passes

    # During backward.

    def _on_gradient(self, slot: Slot, parameter: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self._tasks:
            self._begin_backward(task)
        unit = slot.unit
        if unit.state:
            self._gradient_again(slot)
            unit = slot.unit
        slot.fired += 1
        if slot.fired < self._passes:
            return
        if slot.fired > self._passes:
            raise AssertionError(self._too_many(slot))
        self._full = True
        unit.ready += 1
        if unit.ready == len(unit.slots):
            self._send(unit)

    def _begin_backward(self, task: int) -> None:
        self._tasks.add(task)
        self._site = call_site()
        if not _is_nested():
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(partial(self._backward_ended, task))

    def _backward_ended(self, task: int) -> None:
        self._tasks.clear()
        if self._full:
            self.complete()

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
        if unit.state == SENT or is_same(slot.reduced, slot.parameter.grad):
            raise AssertionError(self._too_many(slot))
        self._reopen()  # the program has dropped the gradients of a step that it did not take

    def _too_many(self, slot: Slot) -> str:
        return (
            f"the gradient of {slot.name} was computed more than backward_passes_per_step = {self._passes} times "
            "before step(). Call step() or zero_grad() in between, or increase backward_passes_per_step to accumulate"
        )

    # Sending.

    def _send(self, unit: Unit) -> None:
        if len(unit.slots) == 1 and not self._options.sparse_as_dense and self._send_sparse(unit):
            return
        unit.wires = wires_of(unit, self._options.compression)
        unit.work = submit(unit, self._how, self._group, self._site)
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
        if not self._site:
            self._site = call_site()
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
        self._site = ""
        self._full = False
        self._completed = True
        self._completions += 1

    def synchronize(self) -> None:
        """Completes the step unless the end of backward has done so."""
        if self._full or not self._completed or self.unreduced() is not None:
            self.complete()

    def _vote(self) -> None:
        """Learns the kind of each parameter's gradients that is not known yet, from whatever rank has one."""
        unknown = [slot for slot in self._slots.values() if slot.kind == UNKNOWN]
        if not unknown:
            return
        grads = [slot.parameter.grad for slot in unknown]
        dense = [int(grad is not None and not grad.is_sparse) for grad in grads]
        sparse = [int(grad is not None and grad.is_sparse) for grad in grads]
        ballot = torch.tensor([dense, sparse], dtype=torch.int32)
        name = f"{unknown[0].name}.kinds.{self._votes}"
        self._votes += 1
        how = (int(Sum), 1.0, 1.0, self._group)
        counts = synchronize(raw.start_allreduce([ballot], name, how, outputs=[ballot]))[0].tolist()
        for slot, has_dense, has_sparse in zip(unknown, *counts, strict=True):
            if has_dense or (has_sparse and self._options.sparse_as_dense):
                slot.kind = DENSE
            elif has_sparse:
                slot.kind = SPARSE

    def _wait(self) -> None:
        """Waits for all that was sent, also if one of them fails; then raises the first failure."""
        failure: BaseException | None = None
        sent = [unit for unit in self._units if unit.state == SENT]
        sparse = [unit for unit in sent if unit.work is None]
        for step, units in ((self._second_phase, sparse), (self._finish, sent)):
            for unit in units:
                try:
                    step(unit)
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            self.reset()
            raise failure

    def _second_phase(self, unit: Unit) -> None:
        if unit.slots[0].sparse is not None:
            unit.slots[0].sparse.start_second_phase()

    def _finish(self, unit: Unit) -> None:
        work, unit.work = unit.work, None
        unit.state = REDUCED
        if work is None:
            slot = unit.slots[0]
            reduction, slot.sparse = slot.sparse, None
            slot.parameter.grad = reduction.result().to(slot.parameter.dtype)
            slot.reduced = weakref.ref(slot.parameter.grad)
            return
        wires, unit.wires = unit.wires, []
        finish(work, wires)
        for slot in unit.slots:
            grad = slot.parameter.grad
            slot.reduced = None if grad is None else weakref.ref(grad)

    def drain(self) -> None:
        """Waits for what is under way without filling in what is missing; the step is given up."""
        self._wait()
        self.reset()

    def reset(self) -> None:
        """The step is over: the next gradients belong to a new one."""
        self._tasks.clear()
        if self._buckets and self._completions:
            # A step with several completions has parts that must not wait for each other.
            if self._completions == 1:
                self._units = bucketed(self._units)
            self._buckets = False
        self._reopen()

    def _reopen(self) -> None:
        self._full = self._completed = False
        for unit in self._units:
            unit.reset()
        self._completions = 0

    def unreduced(self) -> str | None:
        """The name of a parameter whose gradient this rank has accumulated but not reduced."""
        for slot in self._slots.values():
            if slot.fired and slot.unit.state in (OPEN, SENT):
                return slot.name
        return None


def _is_nested() -> bool:
    """Whether this backward was started by another one (checkpointing with use_reentrant): its end is not the end."""
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        if frame.f_code is _BACKWARD:
            calls += 1
        frame = frame.f_back
    return calls > 1


_BACKWARD = torch.autograd.backward.__code__
