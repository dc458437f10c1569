"""DistributedOptimizer: reduces the gradients of the user's optimizer over the ranks before they are applied."""

from __future__ import annotations

import contextlib
import functools
import numbers
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from sirtaki import settings
from sirtaki.checks.arguments import checked_flag, checked_passes, checked_predivide
from sirtaki.checks.parameter_check import ParameterCheck
from sirtaki.compression import checked_compression
from sirtaki.job.rank import renewal
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Adasum, Average, check_adasum, checked_op
from sirtaki.torch.adasum_optimizer import AdasumSteps
from sirtaki.torch.collectives.allreduce import allreduce
from sirtaki.torch.compression import Compression, Compressor
from sirtaki.torch.gradients.backward import not_compiled
from sirtaki.torch.gradients.optimizer_options import (
    Options,
    checked_groups,
    checked_names,
    forget_numbers,
    parameters_of,
)
from sirtaki.torch.gradients.reducer import GradientReducer
from sirtaki.torch.parameter_check import described
from sirtaki.torch.sharded_optimizer import ShardedSteps, Sharding
from sirtaki.torch.sharding.options import check_options


class Attachment:
    """An attribute of each distributed optimizer: its options, and its reducer once there are ranks to reduce over."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.reducer: GradientReducer | None = None
        self.should_synchronize = True
        self.synchronized = False  # by the user, since the last step
        self.check = ParameterCheck.from_environment()
        self.sharding = Sharding(options, self._has_peers()) if options.sharded else None

    def active(self, optimizer: torch.optim.Optimizer) -> GradientReducer | None:
        """The reducer, made when first needed; None while this rank has nobody to reduce with."""
        if self.reducer is None and self.options.op != Adasum and self._has_peers():
            shards = None if self.sharding is None else self.sharding.exchange_of(self.options.process_set)
            self.reducer = GradientReducer(optimizer.param_groups, self.options, shards)
            weakref.finalize(optimizer, self.reducer.close).atexit = False
        return self.reducer

    def _has_peers(self) -> bool:
        process_set = self.options.process_set
        if not core.is_initialized() or not process_set.included():
            return False
        require_id(process_set)  # ValueError: an elastic job may have become too small for the set
        return (process_set.size() or 1) > 1

    def compare_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        """After each step, if SIRTAKI_CHECK_PARAMETERS asks for it."""
        if self.check is not None and self._has_peers():
            entries = enumerate(parameters_of(optimizer))
            names = self.options.name_of
            self.check.after_step(lambda: [described(names(i), p) for i, p in entries], self.options.group)

    def close(self) -> None:
        if self.reducer is not None:
            self.reducer.close()
            self.reducer = None

    def renew(self, optimizer: torch.optim.Optimizer) -> None:
        """For another job: what the ranks of the last one have agreed on no longer holds, and it may have had a step
        that is half done. In an elastic job gradients of such a step are dropped.
        """
        if self.options.number:
            self.options.give_number()
        if self.sharding is not None:
            return  # its own checks refuse other ranks
        self.close()
        self.synchronized = False
        if settings.flag("ELASTIC"):
            for parameter in parameters_of(optimizer):
                parameter.grad = None
        if self.options.process_set.process_set_id is not None:
            self.active(optimizer)


class ReducedSteps:
    """The first base class of a distributed optimizer; the user's class is the second."""

    _distributed: Attachment

    @not_compiled
    def synchronize(self) -> None:
        """Waits until all gradients are reduced. If only other ranks have a gradient, this rank contributes zeros.

        The end of backward does the same. So only gradients that were made without backward need this call.
        """
        attachment = self._distributed
        reducer = attachment.active(self)
        if reducer is not None:
            reducer.settle(self.param_groups)
        attachment.synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() applies gradients unchanged. Call synchronize() before it."""
        self._distributed.should_synchronize = False
        try:
            yield
        finally:
            self._distributed.should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Applies the reduced gradients. After fewer backward passes than backward_passes_per_step, it reduces first.

        With a closure, the gradients of each evaluation are reduced and its loss is averaged. So an optimizer that
        decides by the loss decides alike on all ranks. RuntimeError if step() would apply gradients that were not
        reduced.
        """
        self._opt_called = True  # learning rate schedulers check it
        closure = self._begin_step(closure)
        if closure is not None:
            args = (closure, *args)
        try:
            result = super().step(*args, **kwargs)
        finally:
            self._end_step()
        if self._distributed.check is not None:
            self._compare()
        return result

    # torch wraps step() of a class for its hooks, and schedulers wrap step() of an instance. Neither is needed here.
    step.hooked = True
    step._wrapped_by_lr_sched = True

    @property
    def _local_step(self) -> Callable[..., Any]:
        """The wrapped class's own step."""
        return super().step

    @not_compiled
    def _begin_step(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        reducer = self._distributed.active(self)
        if reducer is not None and closure is not None:
            return self._reduced_closure(closure, reducer)
        if reducer is not None:
            self._prepare_step(reducer)
        return closure

    @not_compiled
    def _end_step(self) -> None:
        self._distributed.synchronized = False
        if self._distributed.reducer is not None:
            self._distributed.reducer.reset()

    @not_compiled
    def _compare(self) -> None:
        self._distributed.compare_parameters(self)

    def _prepare_step(self, reducer: GradientReducer) -> None:
        attachment = self._distributed
        if attachment.should_synchronize:
            if attachment.synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already and are applied as they are.",
                    stacklevel=3,
                )
            reducer.settle(self.param_groups)
            return
        name = reducer.unsettled(self.param_groups)
        if name is not None:
            raise RuntimeError(
                f"step() within skip_synchronize() would apply the gradient of {name}, which was not reduced; call "
                "optimizer.synchronize() first"
            )

    def _reduced_closure(self, closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
        options = self._distributed.options

        @functools.wraps(closure)
        def reduced() -> Any:
            reducer.reset()
            loss = closure()
            self.synchronize()
            return _averaged(loss, reducer.name_of_loss(), options.process_set)

        return reduced

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in the wrapped class, with `set_to_none`. Forgets backward passes that no step() has used."""
        self._forget_step()
        super().zero_grad(*args, **kwargs)

    @not_compiled
    def _forget_step(self) -> None:
        attachment = self._distributed
        if attachment.reducer is not None:
            attachment.reducer.drain()
            attachment.reducer.adopt(self.param_groups)
        attachment.synchronized = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are accumulated before gradients are reduced. Call it between steps only."""
        self._distributed.options.backward_passes_per_step = checked_passes(passes)
        if self._distributed.reducer is not None:
            self._distributed.reducer.set_passes(passes)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_distributed_options": self._distributed.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        options = state.pop("_distributed_options", None)
        super().__setstate__(state)
        if options is not None:
            options.number = 0  # a copy gets its own number
            self._distributed = Attachment(options)
            _attached[self] = None
            self._distributed.active(self)

    def __reduce_ex__(self, protocol: int) -> Any:
        recipe = _recipes.get(type(self))
        if recipe is None:  # the user's own subclass, which pickle finds by its name
            return super().__reduce_ex__(protocol)
        return _empty, recipe, self.__getstate__()


_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, None] = weakref.WeakKeyDictionary()  # as they were made


def _renew_all() -> None:
    forget_numbers()
    for optimizer in list(_attached):
        optimizer._distributed.renew(optimizer)


renewal.at_each_job(_renew_all)
_recipes: weakref.WeakKeyDictionary[type, tuple[type, type]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=64)
def _distributed_class(steps: type, wrapped: type) -> type:
    """A subclass with the name of the wrapped class. There is one for each wrapped class, so that type() of two
    distributed optimizers is equal.
    """
    made = type(wrapped.__name__, (steps, wrapped), {"__doc__": wrapped.__doc__, "__module__": __name__})
    _recipes[made] = (steps, wrapped)
    return made


def _empty(steps: type, wrapped: type) -> Any:
    made = _distributed_class(steps, wrapped)
    return made.__new__(made)


class DistributedAdasumSteps(AdasumSteps, ReducedSteps):
    """Adasum combines the changes that the ranks' steps made, not their gradients."""


class DistributedShardedSteps(ShardedSteps, ReducedSteps):
    """Each rank has its part of the state, and updates its part of every parameter."""


def _averaged(loss: Any, name: str, process_set: ProcessSet) -> Any:
    """The mean over ranks of a number or of a tensor with one element; returns anything else unchanged."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return allreduce(loss.detach().contiguous(), name=name, op=Average, process_set=process_set)
    if isinstance(loss, numbers.Real) and not isinstance(loss, bool):
        value = torch.tensor([float(loss)], dtype=torch.float64)
        return allreduce(value, name=name, op=Average, process_set=process_set).item()
    return loss


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shard_optimizer_state: bool = False,
    free_gradients: bool = False,
) -> torch.optim.Optimizer:
    """Makes the optimizer reduce its gradients over the ranks of the process set, and returns it.

    The same object is returned. Its class becomes a subclass of its own class with the same name. So state,
    schedulers, hooks and references stay valid. Gradients are reduced in place while backward runs, and all are reduced
    when backward returns: clipping, gradient scalers and closures need no special code. A gradient that no rank has
    stays None.

    named_parameters: names for messages, equal on all ranks. backward_passes_per_step: passes to accumulate before the
    reduction. After fewer passes, step() reduces their sum and zero_grad() forgets it; more passes raise
    AssertionError. op: Average, Sum or Adasum (combines the changes of local steps). gradient_predivide_factor: with
    Average, divides by it before and by size / factor after the sum. groups: a number of groups, or lists of
    parameters; each group is one request. sparse_as_dense: turns sparse gradients into dense ones first.
    shard_optimizer_state: each rank keeps only its part of the state and updates only its part of the parameters; for
    elementwise optimizers (docs/sharded_optimizer.md). free_gradients: with it, gradients are freed in backward.

    A rank outside the process set reduces nothing. Before init, and for wrong arguments: ValueError with the value.

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    >>> model(torch.ones(4, 3)).sum().backward()  # the gradients are averages now
    >>> optimizer.step()
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__} {optimizer!r:.80}")
    checked_op(op)
    require_id(process_set)
    groups_by_number, group_count = checked_groups(optimizer, num_groups, groups)
    options = Options(
        names=checked_names(optimizer, named_parameters),
        compression=checked_compression(compression),
        backward_passes_per_step=checked_passes(backward_passes_per_step),
        op=op,
        gradient_predivide_factor=checked_predivide(gradient_predivide_factor, op),
        groups=groups_by_number,
        group_count=group_count,
        sparse_as_dense=bool(sparse_as_dense),
        process_set=process_set,
        sharded=checked_flag("shard_optimizer_state", shard_optimizer_state),
        free_gradients=checked_flag("free_gradients", free_gradients),
    )
    size = core.size()
    if options.sharded:
        check_options(optimizer, options, _wrapped_class(optimizer) or type(optimizer))
        return _attach(optimizer, options, DistributedShardedSteps)
    if options.free_gradients:
        raise ValueError("free_gradients=True needs shard_optimizer_state=True")
    if op == Adasum:
        check_adasum(process_set, size)
    by_adasum = op == Adasum and (size > 1 or settings.flag("ELASTIC"))  # an elastic job may get more ranks
    return _attach(optimizer, options, DistributedAdasumSteps if by_adasum else ReducedSteps)


def _wrapped_class(optimizer: torch.optim.Optimizer) -> type | None:
    """None for the user's own subclass of a distributed class."""
    kind = type(optimizer)
    if not isinstance(optimizer, ReducedSteps):
        return kind
    return _recipes[kind][1] if kind in _recipes else None


def _attach(optimizer: torch.optim.Optimizer, options: Options, steps: type) -> torch.optim.Optimizer:
    wrapped = _wrapped_class(optimizer)
    if isinstance(optimizer, ReducedSteps):  # it is distributed already: the new options replace the old
        if optimizer._distributed.sharding is not None:
            raise ValueError("the optimizer's state is sharded already; make a new optimizer from the parameters")
        optimizer._distributed.close()
    optimizer.__dict__.pop("step", None)  # a scheduler's wrapper of the step() that does not reduce
    if wrapped is not None:  # None: the user's own subclass of a distributed class
        optimizer.__class__ = _distributed_class(steps, wrapped)
    options.give_number()
    attachment = optimizer._distributed = Attachment(options)
    _attached[optimizer] = None
    attachment.active(optimizer)
    if attachment.sharding is not None:
        with torch.no_grad():
            attachment.sharding.pieces_of(optimizer)  # takes over the state that the optimizer has
    return optimizer
