"""Reduces the gradients of one optimizer's parameters while backward still runs, by the rule of docs/gradients.md.

One step. Each parameter has a `Slot`, and slots that are sent together form a `Bucket`. Backward calls a hook when a
parameter's gradient is accumulated. After backward_passes_per_step passes the bucket is submitted and reduced in place.
When backward ends, all other buckets are submitted (a gradient that this rank does not have counts as zero), and the
reducer waits for all. So code between backward and step (clipping, a gradient scaler, norms in a log) sees reduced
gradients. `settle` checks at the step that the optimizer will read the reduced gradients. `reset` ends the step.

May differ between ranks: the order of gradients and of parameters, and which parameters were used. Must be equal: the
number of backward passes in a step, and the names of the parameters that require gradients. The ranks compare these by
a vote when a parameter has its first gradient, and when the parameters have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.reduce_ops import Average
from sirtaki.timing import tuner
from sirtaki.torch.gradients.agreement import Agreement
from sirtaki.torch.gradients.backward import current_task, not_compiled, notify_at_end
from sirtaki.torch.gradients.bucket_table import BucketTable, homes_of
from sirtaki.torch.gradients.members import Members
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.packing import send_packed
from sirtaki.torch.gradients.slots import FILLED, OPEN, REDUCED, SENT, SPARSE, Bucket, Slot
from sirtaki.torch.gradients.sparse_buckets import SparseSender
from sirtaki.torch.gradients.sums import SumsOfLastStep


class GradientReducer:
    """Never refers to the optimizer, so that Python can delete it."""

    def __init__(self, groups: list[dict[str, Any]], options: Options, shards: Any = None) -> None:
        """shards: sends buckets, of which each rank gets its part; see sharding/exchange.py."""
        how = (options.backward_passes_per_step, options.reduction(), options.group)
        self._options = options
        self._step = core.GradientStep(self._on_gradient, self._send, *how)
        self.table = BucketTable(self._step, options)
        self._members = Members(self, groups, options)
        self._shards = shards
        self._agreement = Agreement(self.table, options, self._late_names)
        self._sparse = SparseSender(options)
        self._sums = SumsOfLastStep()  # empty for averages
        self._tasks: set[int] = set()  # running backward calls, by autograd's number
        self._is_new = True  # complete() was not called since the last step
        self._completed = False  # complete() has succeeded since the last step
        tunable = options.group == 0 and shards is None
        self._tuner = tuner.of_job(self._set_bucket_factor) if tunable else None
        self._members.adopt_all(takes_over=True)

    @property
    def buckets(self) -> list[Bucket]:
        """Of all parameters that had a gradient on some rank."""
        return self.table.buckets

    @property
    def shares_parameters(self) -> bool:
        """Whether a later reducer has taken over some of the parameters."""
        return bool(self._members.others())

    def adopt(self, groups: list[dict[str, Any]]) -> None:
        """Adds the optimizer's parameters that are new or no longer frozen; releases those that it no longer has."""
        self._members.adopt(groups)

    def release(self, slots: Sequence[Slot]) -> None:
        """For Members: removes parameters."""
        self._wait(homes_of(slots), given_up=True)
        self.table.remove(slots)

    def close(self) -> None:
        """Removes the hooks."""
        self._members.close()
        self.table.buckets.clear()

    def set_passes(self, passes: int) -> None:
        self._step.passes = passes

    def name_of_loss(self) -> str:
        """For the average of a closure's result."""
        return f"{self._options.prefix}{self._options.first_name}.loss"

    def _late_names(self) -> list[str]:
        """What this rank sends from step() on if its gradients are reduced: those of the next step, or its pieces."""
        return self.table.request_names() if self._shards is None else self._shards.first_gathers(self.table.buckets)

    def _set_bucket_factor(self, factor: float) -> None:
        """For the next step: called on all ranks at the end of the same one."""
        self.table.factor = factor

    # During backward.

    @not_compiled
    def _on_gradient(self, slot: Slot) -> None:
        """The hooks call it before they count a gradient, in all but the usual cases."""
        step = self._step
        if not step.listening:
            self._begin_backward()
            # Before anything is sent, as on ranks whose backward does not come here.
            self._members.adopt(self._members.groups)
            if not self.table.agreed and self.table.buckets:
                step.site += f" ({self._agreement.change()})"
            if slot.bucket is None:
                return  # the optimizer has let go of it
        if slot.bucket.state:
            self._gradient_again(slot)
        if slot.fired >= step.passes:
            raise AssertionError(self._too_many(slot))

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
        bucket = slot.bucket
        if bucket.state != SENT and self._was_dropped():
            if self._options.op != Average and torch.is_grad_enabled():
                raise AssertionError(self._too_many(slot))
            self._wait(given_up=True)
            self._reopen()
            return
        if self._shards is not None:
            raise AssertionError(self._too_many(slot))
        if bucket.state == FILLED:
            # A second backward of this step has a gradient for a parameter that the first one did not use.
            bucket.state, bucket.ready = OPEN, 0
            return
        if bucket.state == REDUCED and bucket.by_size and not slot.fired:
            self.table.split(slot)
            return
        if bucket.state == SENT or bucket.has_reduced(slot):
            raise AssertionError(self._too_many(slot))
        if self._options.op != Average and self._may_keep_sums():
            raise AssertionError(self._too_many(slot))
        self._wait()  # not given up: what this backward has sent must not have been changed since
        self._reopen()

    def _was_dropped(self) -> bool:
        """Whether the program has dropped all gradients and takes no step with them.

        With create_graph it looks the same: backward makes a new gradient tensor in place of adding to the old one.
        """
        held = [slot for slot in self._members.slots.values() if slot.gradient is not None]
        return bool(held) and not any(slot.bucket is None or slot.bucket.has_reduced(slot) for slot in held)

    def _may_keep_sums(self) -> bool:
        """Whether the next request may contain sums of this step; they would be counted once for each rank."""
        slots = self._members.slots.values()
        return torch.is_grad_enabled() or any(s.bucket.has_reduced(s) for s in slots if s.bucket is not None)

    def _too_many(self, slot: Slot) -> str:
        return (
            f"the gradient of {slot.name} was computed more than backward_passes_per_step = {self._step.passes} times "
            "before step(). Call step() or zero_grad() in between, or increase backward_passes_per_step to accumulate"
        )

    # Sending.

    @not_compiled
    def _send(self, bucket: Bucket) -> None:
        """Called by the hook that completes a bucket, unless it is sent from the gradients' own memory."""
        if bucket is self.table.waiting:
            return  # until the ranks have agreed on it
        if all(slot.parameter.grad is None for slot in bucket.slots):
            self._forget(bucket)  # a hook before this one has taken its step already
            return
        self._submit([bucket])

    def _forget(self, bucket: Bucket) -> None:
        for slot in bucket.slots:
            slot.fired = 0
        bucket.ready = 0
        self._step.full = any(slot.fired >= self._step.passes for slot in self._members.slots.values())

    def _submit(self, buckets: Iterable[Bucket]) -> None:
        for bucket in buckets:
            if self._shards is not None:
                self._shards.send(bucket)
            elif bucket.slots[0].kind == SPARSE:
                self._sparse.send(bucket)
            elif not bucket.send_in_place():
                send_packed(bucket, self._options)

    # The end of a step.

    def complete(self) -> None:
        """Submits the missing buckets and waits for all; afterwards all gradients are reduced."""
        step = self._step
        self._is_new = False
        self._sums.check_cleared()
        self._members.adopt(self._members.groups)
        if self._agreement.is_due or not core.all_sent(self.table.buckets):
            self._send_the_rest()
        else:
            self._wait()
        if not step.listening:
            step.site = ""
        step.full = step.touched = False
        self._completed = True
        core.end_step()
        if self._tuner is not None:
            self._tuner.step_ended()

    def _send_the_rest(self) -> None:
        """First what the ranks know, so that a vote meets no other request unless some ranks do not come to it."""
        if not self._step.site:
            self._step.site = call_site()
        try:
            self.table.put_asleep()
            filled = self._submit_open()
            if self._agreement.is_due:
                self._agreement.learn()
                filled += self._submit_open()
        except Exception:
            self._give_up()
            raise
        for bucket in filled:
            bucket.state = FILLED

    def _submit_open(self) -> list[Bucket]:
        """Sends what was not sent, and waits. Returns the buckets to which no backward of this rank came."""
        is_open = [bucket for bucket in self.table.buckets if bucket.state == OPEN]
        self._submit(is_open)
        self._wait()
        return [bucket for bucket in is_open if not any(slot.fired for slot in bucket.slots)]

    # At the step.

    def settle(self, groups: list[dict[str, Any]]) -> None:
        """Afterwards all gradients of these groups' parameters are the ones that were reduced in this step.

        Usually the end of backward has reduced them. Gradients that came or were set later are reduced now.
        RuntimeError on all ranks if that is not possible.
        """
        for other in self._members.others():
            other._settle_own(other._members.groups)
        self._settle_own(groups)

    def _settle_own(self, groups: list[dict[str, Any]]) -> None:
        """Without the other reducers, each of which may have parameters of the other's optimizer."""
        self._members.groups = groups
        if self._step.full or not self._completed or self._is_unreduced():
            self.complete()
        if core.first_unsettled(self._members.order, groups) is not None:
            self._reduce_now()

    def _is_unreduced(self) -> bool:
        """Whether a backward after the last completion has made gradients."""
        return bool(self._step.touched) and any(
            slot.fired and slot.bucket is not None and slot.bucket.state in (OPEN, SENT)
            for slot in self._members.slots.values()
        )

    def _reduce_now(self) -> None:
        """Reduces gradients that did not come from a backward with hooks, if any rank has them."""
        self._members.adopt(self._members.groups)
        self._step.site = call_site()
        try:
            again, made = self._agreement.find_late()
            self._check_once(again)
            self._submit(made)
            self._wait()
            self._reduce_again(again)
        except Exception:
            self._give_up()
            raise
        self._step.site = ""

    def _check_once(self, slots: Sequence[Slot]) -> None:
        """RuntimeError for a sum that was reduced and then replaced: only an average can be reduced twice."""
        if slots and self._shards is not None:
            raise RuntimeError(
                f"{slots[0].name}.grad was set or replaced after backward, on this rank or on another one. With "
                "shard_optimizer_state the optimizer applies the gradients of backward only"
            )
        twice = next((slot for slot in slots if slot.gradient is not None), None)
        if twice is not None and self._options.op != Average:
            raise RuntimeError(
                f"{twice.name}.grad was replaced after it had been reduced, so that the optimizer would apply another "
                f"gradient than the ranks have agreed on, and reducing it again with {self._options.op!r} would count "
                "it once for each rank. Write into the reduced gradient in place (p.grad.copy_(...))"
            )

    def _reduce_again(self, slots: Sequence[Slot]) -> None:
        """Reduces slots that have buckets already. It makes new buckets for this time."""
        homes = [slot.bucket for slot in slots]
        buckets = self.table.for_once(slots)
        try:
            self._submit(buckets)
            self._wait(buckets)
        finally:
            for slot, home in zip(slots, homes, strict=True):
                slot.bucket = home
        for home in homes:
            home.state = max(home.state, REDUCED)

    def unsettled(self, groups: list[dict[str, Any]]) -> str | None:
        """The name of a parameter whose gradient was not reduced and would be applied; None if there is none."""
        for other in self._members.others():
            other.adopt(other._members.groups)
        found = core.first_unsettled(self._members.order, groups)
        if found is True:
            self.adopt(groups)
            found = core.first_unsettled(self._members.order, groups)
        return None if found is None else found.name

    # Waiting, and the beginning of the next step.

    def _wait(self, buckets: list[Bucket] | None = None, given_up: bool = False) -> None:
        """Waits for all that were sent, also if one fails; then raises the first failure.

        given_up: the step is given up, so a gradient that was changed meanwhile is no failure.
        """
        try:
            changed = core.finish_buckets(self.table.buckets if buckets is None else buckets)
            if changed is not True and not given_up:
                raise RuntimeError(
                    f"{changed.name}.grad was replaced or changed during backward, after it was handed over to be "
                    "reduced, so that it does not hold the reduced gradient. Register hooks that do this before "
                    "DistributedOptimizer is made, or do it after backward"
                )
        except Exception:
            self.reset()
            raise

    def _give_up(self) -> None:
        """After a failure: waits for the buckets that were sent, as far as they complete."""
        try:
            self._wait(given_up=True)
        except Exception:
            return  # the first failure says more
        self.reset()

    def drain(self) -> None:
        """Gives the step up: waits for the buckets that were sent, and sends no others."""
        for other in self._members.others():
            other._drop(self._members.order)
        if self._step.touched or not self._is_new:
            self._wait(given_up=True)
            self.reset()

    def reset(self) -> None:
        """Ends the step: the next gradients belong to a new one."""
        for other in self._members.others():
            other._drop(self._members.order)
        self._end_step()

    def _end_step(self) -> None:
        if not self._is_new or self._step.touched:
            self._reopen()

    def _drop(self, slots: Sequence[Slot]) -> None:
        """Another optimizer has applied or cleared the gradients of these parameters."""
        own = [slot for slot in slots if self._members.slots.get(id(slot.parameter)) is slot]
        if len(own) == len(self._members.slots):
            self._wait(given_up=True)
            self._end_step()
            return
        for slot in own:
            slot.gradient, slot.fired = None, 0

    def _reopen(self) -> None:
        self._tasks.clear()
        if self._options.op != Average:
            self._sums.note(self._members.slots.values())
        self.table.reset()
        self._sparse.pending.clear()
        self._step.full = self._step.touched = False
        self._completed = False
        self._is_new = True
