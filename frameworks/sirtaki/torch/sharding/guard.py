"""What `parameter.grad` is after its reduction: no rank has the whole reduced gradient, so reading it is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sirtaki.reduce_ops import Max
from sirtaki.torch.ops.handles import synchronize
from sirtaki.torch.ops.verbs import start_allreduce

if TYPE_CHECKING:
    from sirtaki.torch.sharding.pieces import Piece, Pieces

_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


class GuardedGradient(torch.Tensor):
    """Has the parameter's shape, dtype and device, and no memory. Only gradient scalers may use it: they change this
    rank's piece, and all ranks get the same verdict. RuntimeError for anything else.
    """

    piece: Piece
    pieces: Pieces

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, piece: Piece) -> GuardedGradient:
        like = piece.parameter
        options = {"strides": like.stride(), "dtype": like.dtype, "device": like.device}
        made = torch.Tensor._make_wrapper_subclass(cls, like.shape, **options)
        made.piece = piece
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"GuardedGradient(shape={tuple(self.shape)}, dtype={self.dtype}: each rank has its piece)"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _UNSCALE:
            return _unscale(*args)
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise RuntimeError(
            f"{function} needs the whole gradient, but with shard_optimizer_state each rank has only a piece of it "
            "after backward. To clip, call optimizer.clip_grad_norm(max_norm) or optimizer.clip_grad_value(value). "
            "Call optimizer.zero_grad() before another backward, or give backward_passes_per_step to accumulate"
        )


def _unscale(gradients: list[Any], found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    own = [g.piece.gradient for g in gradients if g.piece.gradient is not None and len(g.piece)]
    if own:
        _UNSCALE(own, found_inf, inverse_scale)
    process_set = gradients[0].pieces.process_set
    how = (int(Max), 1.0, 1.0, process_set.process_set_id or 0)
    flat = found_inf.view(1)
    synchronize(start_allreduce([flat], "sharded_optimizer.found_inf", how, [flat]))
