"""Reduces the gradients of one optimizer's parameters while backward still runs, by the rule of docs/gradients.md.

One step. Each parameter has a `Slot`, and slots that are sent together form a `Unit`. Backward calls a hook when a
parameter's gradient is accumulated. After backward_passes_per_step passes the unit is submitted and reduced in place.
When backward ends, all other units are submitted (a gradient that this rank does not have counts as zero), and the
reducer waits for all. So code between backward and step (clipping, a gradient scaler, norms in a log) sees reduced
gradients. `settle` checks at the step that the optimizer will read the reduced gradients. `reset` ends the step.

May differ between ranks: the order of gradients and of parameters, and which parameters were used. Must be equal: the
number of backward passes in a step, and the names of the parameters that require gradients. The ranks compare these by
a vote when a parameter has its first gradient, and when the parameters have changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core
from sirtaki.reduce_ops import Average
from sirtaki.timing import tuner
from sirtaki.torch.gradients.backward import current_task, not_compiled, notify_at_end
from sirtaki.torch.gradients.gradient_kinds import Ballot, agree, met_another_request, refuse
from sirtaki.torch.gradients.optimizer_options import Options, parameters_in
from sirtaki.torch.gradients.sending import send
from sirtaki.torch.gradients.sparse_units import send_sparse
from sirtaki.torch.gradients.sums import SumsOfLastStep
from sirtaki.torch.gradients.unit_maker import UnitMaker
from sirtaki.torch.gradients.units import (
    DENSE,
    FILLED,
    OPEN,
    REDUCED,
    SENT,
    SPARSE,
    UNKNOWN,
    Slot,
    Unit,
)
from sirtaki.torch.gradients.waiting import text_of_change, wait_for

# The reducer that has a parameter's hook, by the parameter's id. A reducer keeps its parameters alive until it closes.
_owners: dict[int, weakref.ref[GradientReducer]] = {}


class GradientReducer:
    """Owns the hooks on the parameters until `close`. Never refers to the optimizer, so that Python can delete it.

    A parameter of several optimizers belongs to the latest reducer. The others use the gradient that it has reduced.
    """

    def __init__(self, groups: list[dict[str, Any]], options: Options) -> None:
        self._options = options
        self._group = options.process_set.process_set_id
        self._how = options.reduction()
        self._step = core.GradientStep(self._on_gradient, self._send, options.backward_passes_per_step)
        self._groups = groups  # the optimizer's
        self._order: tuple[Slot, ...] = ()  # all its parameters, also if another reducer has the hook
        self._slots: dict[int, Slot] = {}  # the parameters with a hook of this reducer, by id
        self._hooks: dict[int, Any] = {}
        self._others: list[weakref.ref[GradientReducer]] = []  # reducers with hooks on parameters in `_order`
        self._units: list[Unit] = []
        self._waiting = Unit(self._step, [], "")  # parameters that had no gradient on any rank so far; is never sent
        self._maker = UnitMaker(self._step, options)
        self._agreed = True  # all ranks hold the same parameters, as far as is known
        self._gone: list[str] = []  # what ranks send that have not let go of the same units; since the last vote
        self._votes_anyway = False  # in a step without changes, for some parameters never had a gradient
        self._tasks: set[int] = set()  # running backward calls, by autograd's number
        self._is_new = True  # complete() was not called since the last step
        self._completions = 0  # since the last step
        self._votes = 0
        self._announced: set[str] = set()
        self._sums = SumsOfLastStep()  # empty for averages
        self._dense: list[Slot] = []  # that have units, in the order on which the ranks agreed
        self._bucket_factor = 1.0  # the maker's from the next step on
        self._tuner = tuner.of_job(self._set_bucket_factor) if self._group == 0 else None
        self._adopt(takes_over=True)

    # Which parameters.

    def adopt(self, groups: list[dict[str, Any]]) -> None:
        """Adds the optimizer's parameters that are new or no longer frozen; releases those that it no longer has."""
        self._groups = groups
        if not core.same_parameters(self._order, groups):
            self._adopt()

    def _adopt(self, takes_over: bool = False) -> None:
        parameters = parameters_in(self._groups)
        kept = {id(parameter) for parameter in parameters}
        gone = [slot for key, slot in self._slots.items() if key not in kept]
        if gone:
            self._release(gone)
        taken: dict[GradientReducer, list[Slot]] = {}
        order: list[Slot] = []
        others: list[GradientReducer] = []
        used = {slot.name for slot in self._slots.values()}
        for number, parameter in enumerate(parameters):
            slot, owner = self._slots.get(id(parameter)), _owner_of(parameter)
            if slot is None and owner is not None and not takes_over:
                slot = owner._slots[id(parameter)]
                others.append(owner)
            elif slot is None:
                earlier = self._order[number].name if number < len(self._order) else ""
                slot = Slot(parameter, self._options.unused_name(number, used, None if takes_over else earlier))
                used.add(slot.name)
                self._slots[id(parameter)] = slot
                self._agreed = False
                if owner is not None:
                    taken.setdefault(owner, []).append(slot)
            order.append(slot)
        self._order = tuple(order)
        self._others = [weakref.ref(owner) for owner in dict.fromkeys(others)]
        for owner, slots in taken.items():
            owner._give(slots, self)
        self._wake()

    def _wake(self) -> None:
        """Adds hooks to parameters that require gradients. They wait for their first gradient in `_waiting`."""
        woken = []
        for key, slot in self._slots.items():
            parameter = slot.parameter
            _owners[key] = weakref.ref(self)
            if parameter.requires_grad and key not in self._hooks:
                self._hooks[key] = parameter.register_post_accumulate_grad_hook(slot)
            if slot.unit is None and (parameter.requires_grad or parameter.grad is not None):
                woken.append(slot)
        if woken:
            self._agreed = False
            self._set_waiting([*self._waiting.slots, *woken])

    def _set_waiting(self, slots: Iterable[Slot]) -> None:
        self._waiting.slots = list(slots)
        for slot in self._waiting.slots:
            slot.unit = self._waiting
        self._waiting.count(self._step.passes)

    def _release(self, slots: Sequence[Slot]) -> None:
        """Removes parameters from this reducer."""
        homes = {id(slot.unit): slot.unit for slot in slots if slot.unit is not None}.values()
        self._wait(list(homes), given_up=True)
        gone = {id(slot) for slot in slots}
        for slot in slots:
            key = id(slot.parameter)
            del self._slots[key]
            _owners.pop(key, None)
            if (hook := self._hooks.pop(key, None)) is not None:
                hook.remove()
        for unit in homes:
            unit.remove(gone)
        for slot in slots:
            slot.unit = None
        self._let_go([unit for unit in self._units if not unit.slots])
        self._dense = [slot for slot in self._dense if id(slot) not in gone]

    def _let_go(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._units.remove(unit)
            self._gone.append(unit.name)
        self._agreed = False

    def _give(self, slots: Sequence[Slot], owner: GradientReducer) -> None:
        """Another reducer takes over these parameters. slots: its slots."""
        successors = {id(slot.parameter): slot for slot in slots}
        self._release([self._slots[key] for key in successors])
        self._order = tuple(successors.get(id(slot.parameter), slot) for slot in self._order)
        self._others.append(weakref.ref(owner))

    def close(self) -> None:
        """Removes the hooks."""
        for key, slot in self._slots.items():
            slot.unit = None
            if _owner_of(slot.parameter) is self:
                _owners.pop(key)
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._slots.clear()
        self._units.clear()

    def set_passes(self, passes: int) -> None:
        self._step.passes = passes

    def name_of_loss(self) -> str:
        """For the average of a closure's result."""
        return f"{self._options.prefix}{self._options.first_name}.loss"

    # During backward.

    @not_compiled
    def _on_gradient(self, slot: Slot) -> None:
        """The hooks call it in all but the usual cases: see bindings/core/gradients/gradients.h."""
        step = self._step
        if not step.listening:
            self._begin_backward()
            self.adopt(self._groups)  # before anything is sent, as on ranks whose backward does not come here
            if not self._agreed and self._units:
                step.site += f" ({self._change()})"
            if slot.unit is None:
                return  # the optimizer has let go of it
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

    @not_compiled
    def _begin_backward(self) -> None:
        task = current_task()
        self._sums.check_cleared()
        if task not in self._tasks:
            self._tasks.add(task)
            self._step.site = notify_at_end(self._step, self._backward_ended, self._begin_backward)

    @not_compiled
    def _backward_ended(self) -> None:
        self._tasks.clear()
        if self._step.full:
            self.complete()
        self._step.site = ""

    def _gradient_again(self, slot: Slot) -> None:
        """A gradient for a parameter that was already reduced in this step."""
        unit = slot.unit
        if unit.state != SENT and self._was_dropped():
            if self._options.op != Average and torch.is_grad_enabled():
                raise AssertionError(self._too_many(slot))
            self._wait(given_up=True)
            self._reopen()
            return
        if unit.state == FILLED:
            # A second backward of this step has a gradient for a parameter that the first one did not use.
            unit.state, unit.ready = OPEN, 0
            return
        if unit.state == REDUCED and unit.bucket and not slot.fired:
            self._units.append(unit.without(slot))
            self._units = [unit for unit in self._units if unit.slots]
            return
        if unit.state == SENT or unit.has_reduced(slot):
            raise AssertionError(self._too_many(slot))
        if self._options.op != Average and self._may_keep_sums():
            raise AssertionError(self._too_many(slot))
        self._wait()  # not given up: what this backward has sent must not have been changed since
        self._reopen()

    def _was_dropped(self) -> bool:
        """Whether the program has dropped all gradients and takes no step with them.

        With create_graph it looks the same: backward makes a new gradient tensor in place of adding to the old one.
        """
        held = [slot for slot in self._slots.values() if slot.gradient is not None]
        return bool(held) and not any(slot.unit is None or slot.unit.has_reduced(slot) for slot in held)

    def _may_keep_sums(self) -> bool:
        """Whether the next request may contain sums of this step; they would be counted once for each rank."""
        return torch.is_grad_enabled() or any(s.unit.has_reduced(s) for s in self._slots.values() if s.unit is not None)

    def _too_many(self, slot: Slot) -> str:
        return (
            f"the gradient of {slot.name} was computed more than backward_passes_per_step = {self._step.passes} times "
            "before step(). Call step() or zero_grad() in between, or increase backward_passes_per_step to accumulate"
        )

    # Sending.

    @not_compiled
    def _send(self, unit: Unit) -> None:
        """Called by the hook that completes a unit."""
        if unit is self._waiting:
            return  # until the ranks have agreed on it
        if all(slot.parameter.grad is None for slot in unit.slots):
            self._forget(unit)  # a hook before this one has taken its step already
            return
        self._submit(unit)

    def _forget(self, unit: Unit) -> None:
        for slot in unit.slots:
            slot.fired = 0
        unit.ready = 0
        self._step.full = any(slot.fired >= self._step.passes for slot in self._slots.values())

    def _submit(self, unit: Unit) -> None:
        if unit.slots[0].kind == SPARSE:
            send_sparse(unit, self._options.op, self._options.process_set, self._announced)
        else:
            send(unit, self._how, self._group, self._options.compression)
        unit.times += 1
        unit.state = SENT

    # The end of a step.

    def complete(self) -> None:
        """Submits the missing units and waits for all; afterwards all gradients are reduced."""
        step = self._step
        self._is_new = False
        self._sums.check_cleared()
        self.adopt(self._groups)
        if self._waiting.slots or not self._agreed or not self._finish_prepared():
            self._send_the_rest()
        if not step.listening:
            step.site = ""
        step.full = step.touched = False
        self._completions += 1
        core.end_step()
        if self._tuner is not None:
            self._tuner.step_ended()

    def _finish_prepared(self) -> bool:
        """The usual end of a step: every unit was sent as prepared. False, without any effect, if not."""
        try:
            finished = core.finish_units(self._units)
            if finished not in (True, False):
                raise RuntimeError(text_of_change(finished))
        except Exception:
            self.reset()
            raise
        return finished

    def _send_the_rest(self) -> None:
        """First what the ranks know, so that a vote meets no other request unless some ranks do not come to it."""
        if not self._step.site:
            self._step.site = call_site()
        try:
            self._put_asleep()
            filled = self._submit_open()
            self._wait()
            if self._waiting.slots or not self._agreed:
                self._learn()
                filled += self._submit_open()
                self._wait()
        except Exception:
            self._give_up()
            raise
        for unit in filled:
            unit.state = FILLED

    def _put_asleep(self) -> None:
        """Lets go of units that were frozen as a whole."""
        asleep = [unit for unit in self._units if unit.state == OPEN and unit.sleeps()]
        for unit in asleep:
            for slot in unit.slots:
                slot.unit, slot.kind = None, UNKNOWN
        if asleep:
            self._let_go(asleep)

    def _submit_open(self) -> list[Unit]:
        """Sends what was not sent. Returns the units to which no backward of this rank came."""
        filled = []
        for unit in self._units:
            if unit.state == OPEN:
                if not any(slot.fired for slot in unit.slots):
                    filled.append(unit)
                self._submit(unit)
        return filled

    def _learn(self) -> None:
        """The vote on parameters that had no gradient so far."""
        asked = list(self._waiting.slots)
        known = [slot for unit in self._units for slot in unit.slots]
        others = self._gone or ([] if self._votes_anyway else self._requests())
        why = self._change() if self._units and not self._agreed else ""
        ballot = Ballot("parameters that have gradients", asked, known, lambda slot: True, why)
        self._found(asked, self._agree(ballot, others))
        self._votes_anyway = bool(self._waiting.slots)

    def _change(self) -> str:
        """What is shown of this rank should the others not come to a vote after a change of the parameters."""
        what = f"the parameters of {self._gone[0]} were frozen, replaced or removed" if self._gone else ""
        if not what and self._waiting.slots:
            what = f"{self._waiting.slots[-1].name} was added, replaced or unfrozen"
        return _on_all_ranks(what or "parameters were removed")

    def _requests(self) -> list[str]:
        """What this rank sends in every step."""
        return [unit.request_name() for unit in self._units]

    def _agree(self, ballot: Ballot, others: Sequence[str]) -> list[tuple[Slot, int]]:
        """The result of a vote. others: what ranks wait for in place of it that do not come to it.

        The vote has the first of these names. So such ranks meet it, and all ranks get an error at once.
        """
        prefix, first = self._options.prefix, self._options.first_name
        name = others[0] if others else f"allreduce.{prefix}{first}: vote {self._votes + 1}"
        try:
            found = agree(ballot, name, self._group)
        except SirtakiInternalError as error:
            if met_another_request(error):
                refuse(others[1:], self._group)
            raise
        self._votes += not others
        self._agreed = True
        self._maker.forget(self._gone)
        self._gone = []
        return found

    def _found(self, asked: Sequence[Slot], found: Sequence[tuple[Slot, int]]) -> list[Unit]:
        """Makes units of those of `asked` that have gradients for the first time."""
        for slot, kind in found:
            slot.as_table = kind == SPARSE and self._options.sparse_as_dense
            slot.kind = DENSE if slot.as_table else kind
        made = self._maker.units_of([slot for slot, _ in found])
        self._units += made
        self._dense += [slot for slot, _ in found if slot.kind == DENSE]
        self._set_waiting(slot for slot in asked if slot.kind == UNKNOWN)
        return made

    def _set_bucket_factor(self, factor: float) -> None:
        """For the next step: called on all ranks at the end of the same one."""
        self._bucket_factor = factor

    def _rebucket(self) -> None:
        """Between two steps. The new units are the same on all ranks, since the slots are and their order is."""
        self._maker.bucket_factor = self._bucket_factor
        if self._maker.has_buckets(self._dense):
            sparse = [unit for unit in self._units if unit.slots[0].kind == SPARSE]
            self._units = sparse + self._maker.units_of(self._dense)

    # At the step.

    def settle(self, groups: list[dict[str, Any]]) -> None:
        """Afterwards all gradients of these groups' parameters are the ones that were reduced in this step.

        Usually the end of backward has reduced them. Gradients that came or were set later are reduced now.
        RuntimeError on all ranks if that is not possible.
        """
        for other in self._living_others():
            other._settle_own(other._groups)
        self._settle_own(groups)

    def _settle_own(self, groups: list[dict[str, Any]]) -> None:
        """Without the other reducers, each of which may have parameters of the other's optimizer."""
        self._groups = groups
        if self._step.full or not self._completions or self._is_unreduced():
            self.complete()
        if core.first_unsettled(self._order, groups) is not None:
            self._reduce_now()

    def _living_others(self) -> list[GradientReducer]:
        return [other for reference in self._others if (other := reference()) is not None] if self._others else []

    def _is_unreduced(self) -> bool:
        """Whether a backward after the last completion has made gradients."""
        return bool(self._step.touched) and any(
            slot.fired and slot.unit is not None and slot.unit.state in (OPEN, SENT) for slot in self._slots.values()
        )

    def _reduce_now(self) -> None:
        """Reduces gradients that did not come from a backward with hooks, if any rank has them."""
        self.adopt(self._groups)
        step = self._step
        step.site = call_site()
        try:
            self._vote_and_reduce()
        except Exception:
            self._give_up()
            raise
        step.site = ""

    def _vote_and_reduce(self) -> None:
        waiting = self._waiting.slots
        asked = [*waiting, *(slot for unit in self._units for slot in unit.slots)]
        if not asked:
            return
        ballot = Ballot("gradients that came after backward", asked, [], Slot.is_unsettled, _why(asked))
        found = self._agree(ballot, self._requests())
        again = [slot for slot, _ in found if slot.kind != UNKNOWN]
        made = self._found([s for s in asked if s.kind == UNKNOWN], [entry for entry in found if not entry[0].kind])
        self._check_once(again)
        for unit in made:
            self._submit(unit)
        self._wait()
        self._reduce_again(again)

    def _check_once(self, slots: Sequence[Slot]) -> None:
        """RuntimeError for a sum that was reduced and then replaced: only an average can be reduced twice."""
        twice = next((slot for slot in slots if slot.gradient is not None), None)
        if twice is not None and self._options.op != Average:
            raise RuntimeError(
                f"{twice.name}.grad was replaced after it had been reduced, so that the optimizer would apply another "
                f"gradient than the ranks have agreed on, and reducing it again with {self._options.op!r} would count "
                "it once for each rank. Write into the reduced gradient in place (p.grad.copy_(...))"
            )

    def _reduce_again(self, slots: Sequence[Slot]) -> None:
        """Reduces slots that have units already. It makes new units for this time."""
        if not slots:
            return
        homes = [slot.unit for slot in slots]
        units = self._maker.units_for_once(slots)
        try:
            for unit in units:
                self._submit(unit)
            self._wait(units)
        finally:
            for slot, home in zip(slots, homes, strict=True):
                slot.unit = home
        for home in homes:
            home.state = max(home.state, REDUCED)

    def unsettled(self, groups: list[dict[str, Any]]) -> str | None:
        """The name of a parameter whose gradient was not reduced and would be applied; None if there is none."""
        for other in self._living_others():
            other.adopt(other._groups)
        found = core.first_unsettled(self._order, groups)
        if found is True:
            self.adopt(groups)
            found = core.first_unsettled(self._order, groups)
        return None if found is None else found.name

    # Waiting, and the beginning of the next step.

    def _wait(self, units: Sequence[Unit] | None = None, given_up: bool = False) -> None:
        """Waits for all units that were sent, also if one fails; then raises the first failure."""
        failure = wait_for(self._units if units is None else units, given_up)
        if failure is not None:
            self.reset()
            raise failure

    def _give_up(self) -> None:
        """After a failure: waits for the units that were sent, as far as they complete."""
        try:
            self._wait(given_up=True)
        except Exception:
            return  # the first failure says more
        self.reset()

    def drain(self) -> None:
        """Gives the step up: waits for the units that were sent, and sends no others."""
        for other in self._living_others():
            other._drop(self._order)
        if self._step.touched or not self._is_new:
            self._wait(given_up=True)
            self.reset()

    def reset(self) -> None:
        """Ends the step: the next gradients belong to a new one."""
        for other in self._living_others():
            other._drop(self._order)
        self._end_step()

    def _end_step(self) -> None:
        if not self._is_new or self._step.touched:
            self._reopen()

    def _drop(self, slots: Sequence[Slot]) -> None:
        """Another optimizer has applied or cleared the gradients of these parameters."""
        own = [slot for slot in slots if self._slots.get(id(slot.parameter)) is slot]
        if len(own) == len(self._slots):
            self._wait(given_up=True)
            self._end_step()
            return
        for slot in own:
            slot.gradient, slot.fired = None, 0

    def _reopen(self) -> None:
        self._tasks.clear()
        if self._options.op != Average:
            self._sums.note(self._slots.values())
        for unit in self._units:
            unit.reset()
        self._waiting.reset()
        if self._maker.bucket_factor != self._bucket_factor:
            self._rebucket()
        self._step.full = self._step.touched = False
        self._completions = 0
        self._is_new = True


def _owner_of(parameter: torch.Tensor) -> GradientReducer | None:
    reference = _owners.get(id(parameter))
    owner = reference() if reference is not None else None
    slot = owner._slots.get(id(parameter)) if owner is not None else None
    return owner if slot is not None and slot.parameter is parameter else None


def _why(slots: Sequence[Slot]) -> str:
    """What is shown of this rank should the others not come to the vote."""
    first = next((slot for slot in slots if slot.is_unsettled()), None)
    if first is None:
        return _on_all_ranks("the optimizer's parameters have changed")
    came = "was replaced after it had been reduced" if first.gradient is not None else "was not there in backward"
    return _on_all_ranks(f"{first.name}.grad {came}")


def _on_all_ranks(what: str) -> str:
    return f"{what}, which must be so on all ranks"
