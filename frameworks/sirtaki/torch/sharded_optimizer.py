"""Steps of an optimizer whose state is divided: each rank updates its piece of every parameter; see
docs/sharded_optimizer.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sirtaki.process_sets import ProcessSet
from sirtaki.reduce_ops import Max, Sum
from sirtaki.torch.gradients import direct
from sirtaki.torch.gradients.backward import not_compiled
from sirtaki.torch.gradients.optimizer_options import Options, parameters_of
from sirtaki.torch.gradients.reducer import GradientReducer
from sirtaki.torch.sharding import checkpoint, state
from sirtaki.torch.sharding.exchange import GATHERS, ShardExchange
from sirtaki.torch.sharding.pieces import Piece, Pieces, flat, laid_out_like

# So many buckets are updated by one call of the wrapped class's step. On a GPU that call takes the host a millisecond,
# and the GPU less. On a CPU each bucket is updated while the one before is gathered.
_TOGETHER = {"cuda": 4}


class Sharding:
    """The sharded part of one optimizer on this rank."""

    def __init__(self, options: Options, has_peers: bool) -> None:
        process_set = options.process_set
        ranks = (process_set.size() or 1, process_set.rank() or 0) if has_peers else (1, 0)
        self.options = options
        self.pieces = Pieces(process_set, *ranks)
        self.exchange = ShardExchange(self.pieces, options)

    def exchange_of(self, process_set: ProcessSet) -> ShardExchange:
        """RuntimeError if the set has other ranks than when the state was divided."""
        if (self.pieces.ranks, self.pieces.rank) != (process_set.size(), process_set.rank()):
            raise RuntimeError(
                f"the optimizer's state was divided among {self.pieces.ranks} ranks, and the process set has "
                f"{process_set.size()} now. Make the optimizer again, and load its state"
            )
        return self.exchange

    def names(self, count: int) -> list[str]:
        """Of so many parameters, without those of another optimizer."""
        return [self.options.prefix + self.options.name_of(number) for number in range(count)]

    def pieces_of(self, optimizer: torch.optim.Optimizer) -> list[Piece]:
        """Of all parameters in order, with the state that the optimizer has for whole parameters."""
        parameters = parameters_of(optimizer)
        pieces = [self.pieces.of(p, self.options.name_of(number)) for number, p in enumerate(parameters)]
        for gone in self.pieces.keep_only(parameters):
            optimizer.state.pop(gone.tensor, None)
        for parameter, piece in zip(parameters, pieces, strict=True):
            if parameter in optimizer.state:
                state.take_whole(optimizer.state, piece, optimizer.state.pop(parameter))
        return pieces


class ShardedSteps:
    """A base class of a distributed optimizer, before ReducedSteps."""

    _distributed: Any

    @not_compiled
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's pieces by the reduced gradients, and gathers all ranks' pieces into the parameters.

        A closure is evaluated once, before the update. RuntimeError if a gradient was not reduced.
        """
        self._opt_called = True
        loss = None
        if closure is not None:
            reducer = self._distributed.active(self)
            with torch.enable_grad():
                loss = closure() if reducer is None else self._reduced_closure(closure, reducer)()
        try:
            self._update_pieces()
        finally:
            self._end_step()
        if self._distributed.check is not None:
            self._compare()
        return loss

    step.hooked = True
    step._wrapped_by_lr_sched = True

    @torch.optim.Optimizer.profile_hook_step  # runs the program's hooks once in a step
    def _update_pieces(self) -> None:
        sharding, reducer = self._distributed.sharding, self._distributed.active(self)
        if reducer is not None:
            if reducer.shares_parameters:
                raise RuntimeError(
                    "another DistributedOptimizer, made later, has some of these parameters; with "
                    "shard_optimizer_state a parameter belongs to one optimizer"
                )
            self._prepare_step(reducer)
        pieces = sharding.pieces_of(self)
        with torch.no_grad():
            if reducer is None:
                self._step_alone(pieces)
            else:
                self._step_buckets(reducer, sharding.exchange)

    def _step_alone(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            gradient = piece.parameter.grad
            piece.gradient = None if gradient is None else flat(laid_out_like(gradient, piece.parameter))
            piece.follow_parameter()
            piece.give_gradient()
        self._update(pieces)
        for piece in pieces:
            piece.store()

    def _step_buckets(self, reducer: GradientReducer, exchange: ShardExchange) -> None:
        gathers: list[Callable[[], None]] = []
        buckets = exchange.to_gather(reducer.buckets)
        together = _TOGETHER.get(buckets[0].slots[0].parameter.device.type, 1) if buckets else 1
        for first in range(0, len(buckets), together):
            some = buckets[first : first + together]
            for bucket in some:
                bucket.shard.follow_parameters()
                bucket.shard.give_gradients()
            self._update([piece for bucket in some for piece in bucket.shard.layout.pieces])
            for bucket in some:
                gathers.append(exchange.gather(bucket))
                if len(gathers) > GATHERS:
                    gathers.pop(0)()
        for finish in gathers:
            finish()

    def _update(self, pieces: Sequence[Piece]) -> None:
        """The wrapped class's own step on these pieces, whose tensors have their gradients."""
        ready = [piece for piece in pieces if piece.is_updated and piece.gradient is not None]
        if not ready:
            return
        with self._groups_of(ready):
            self._step_of_class()
        for piece in ready:
            piece.drop_gradient()

    @contextlib.contextmanager
    def _groups_of(self, pieces: Sequence[Piece]) -> Iterator[None]:
        """A context in which the groups contain the pieces in place of the parameters."""
        whole = [group["params"] for group in self.param_groups]
        numbers = {id(parameter): number for number, group in enumerate(whole) for parameter in group}
        parts: list[list[torch.Tensor]] = [[] for _ in whole]
        for piece in pieces:
            number = numbers.get(id(piece.parameter))
            if number is not None:
                parts[number].append(piece.tensor)
        for group, part in zip(self.param_groups, parts, strict=True):
            group["params"] = part
        try:
            yield
        finally:
            for group, parameters in zip(self.param_groups, whole, strict=True):
                group["params"] = parameters

    def _step_of_class(self) -> None:
        step = self._local_step.__func__
        if getattr(step, "hooked", False):
            step = step.__wrapped__  # without the program's hooks
        step(self)

    @not_compiled
    def _end_step(self) -> None:
        super()._end_step()
        self._distributed.sharding.exchange.end_step()

    @not_compiled
    def _forget_step(self) -> None:
        super()._forget_step()
        sharding = self._distributed.sharding
        sharding.exchange.end_step()
        for piece in sharding.pieces.all():
            if piece.parameter.grad is piece.guard:
                piece.parameter.grad = None

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The whole state in torch's format, on any number of ranks the same, in host memory of the process set's first
        rank. The other ranks get the param_groups only, which cannot be loaded. Every rank calls it.
        """
        sharding = self._distributed.sharding
        pieces = sharding.pieces_of(self)
        for piece in pieces:
            piece.follow_parameter()
        held, self.state = self.state, {}
        try:
            found = super().state_dict()
        finally:
            self.state = held
        whole = state.whole_states(sharding.pieces, pieces, sharding.names(len(pieces)), held)
        if whole is None:
            found[state.ELSEWHERE] = sharding.options.process_set.ranks[0]
        else:
            found["state"] = whole
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the whole state, as state_dict() gives it on any number of ranks, or torch's own optimizer. Every rank
        calls it with the same. ValueError on all ranks, and nothing is changed, if it does not fit on one of them.
        """
        sharding = self._distributed.sharding
        names = [self._distributed.options.name_of(number) for number in range(len(parameters_of(self)))]
        state.agree_on_loading(state.problem_of(state_dict, self.param_groups, names), state_dict, sharding.pieces)
        super().load_state_dict({**state_dict, "state": {}})
        for piece, key in zip(sharding.pieces_of(self), state.keys_of(state_dict), strict=True):
            if key in state_dict["state"]:
                state.take_whole(self.state, piece, state_dict["state"][key])

    @torch.no_grad()
    def sharded_state_dict(self) -> dict[str, Any]:
        """For torch.distributed.checkpoint: {"state": {name: {key: value}}, "param_groups": {...}}. No communication.

        A value that has an element for each element of the parameter is a ShardTensor: flat, and this rank's part of
        it is the state's own memory. So saving copies nothing, and loading writes into the state, on any number of
        ranks. A state that does not exist yet is made, so that it can be loaded.
        """
        sharding = self._distributed.sharding
        pieces = sharding.pieces_of(self)
        if not self.state:
            self._make_state(pieces)
        names = [self._distributed.options.name_of(number) for number in range(len(pieces))]
        return checkpoint.sharded(self.param_groups, dict(zip(names, pieces, strict=True)), self.state)

    @torch.no_grad()
    def load_sharded_state_dict(self, state_dict: dict[str, Any]) -> None:
        """After torch.distributed.checkpoint.load() has written into what sharded_state_dict() gave: takes over the
        rest of it, as learning rates.
        """
        for number, group in enumerate(self.param_groups):
            group.update(state_dict["param_groups"][str(number)])

    def _make_state(self, pieces: Sequence[Piece]) -> None:
        """By a step that changes no parameter."""
        kept = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        for piece in pieces:
            piece.gradient = torch.zeros(len(piece), dtype=piece.parameter.dtype, device=piece.parameter.device)
            piece.follow_parameter()
            piece.give_gradient()
        self._update(pieces)
        for group, rate in zip(self.param_groups, kept, strict=True):
            group["lr"] = rate

    def __getstate__(self) -> Any:
        raise TypeError("an optimizer with shard_optimizer_state cannot be copied or pickled; use state_dict()")

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_ of all parameters, over all ranks: the norm before clipping. Every rank
        calls it, after backward, and after unscale_() of a gradient scaler.
        """
        norm_type = float(norm_type)
        total = self._sum_over_pieces(norm_type)
        if error_if_nonfinite and not torch.isfinite(total):
            raise RuntimeError(f"the norm of the gradients is {total.item()}, so they cannot be clipped")
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for gradient in self._piece_gradients():
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return total

    @torch.no_grad()
    def clip_grad_value(self, clip_value: float) -> None:
        """As torch.nn.utils.clip_grad_value_ of all parameters."""
        for gradient in self._piece_gradients():
            gradient.clamp_(-clip_value, clip_value)

    def _piece_gradients(self) -> list[torch.Tensor]:
        """The reduced gradients of this rank's pieces."""
        reducer = self._distributed.active(self)
        if reducer is None:
            return [p.grad for p in parameters_of(self) if p.grad is not None]
        reducer.settle(self.param_groups)
        pieces = self._distributed.sharding.pieces_of(self)
        return [piece.gradient for piece in pieces if piece.gradient is not None and len(piece)]

    def _sum_over_pieces(self, norm_type: float) -> torch.Tensor:
        """The norm of all gradients, over all ranks."""
        gradients = self._piece_gradients()
        device = next((p.device for p in parameters_of(self)), torch.device("cpu"))
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32).to(device) for g in gradients]
        is_max = math.isinf(norm_type)
        powers = torch.stack(norms) if norms else torch.zeros(1, device=device)
        total = (powers.max() if is_max else powers.pow(norm_type).sum()).view(1)
        options = self._distributed.options
        if self._distributed.reducer is not None:
            name = f"{options.prefix}{options.first_name}.norm"
            direct.allreduce(total, name, int(Max if is_max else Sum), options.group)
        return total[0] if is_max else total[0].pow(1.0 / norm_type)
