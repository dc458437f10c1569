"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.reduce_ops import Sum
from sirtaki.torch.gradients import direct

_numbers = itertools.count(1)


class SyncBatchNorm(_BatchNorm):
    """As torch's BatchNorm1d/2d/3d, with mean and variance over all ranks of the process set. Any device.

    Input (N, C, ...) of a floating dtype; N may differ between ranks. In evaluation mode, or on a single rank, it is
    plain batch norm and communicates with no other rank, also without running statistics. Layers are numbered in the
    order of their construction, so all ranks must construct them in the same order.

    >>> hvd.SyncBatchNorm(2)(torch.tensor([[1.0, 5.0], [3.0, 9.0]])).detach().round()
    tensor([[-1., -1.],
            [ 1.,  1.]])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self._name = f"sync_batch_norm.{next(_numbers)}"

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (N, C, ...), got shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or not self._has_peers():
            return self._plain(input, self.training or self.running_mean is None)
        group = require_id(self.process_set)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps, self._name, group)
        if self.training and self.track_running_stats and self.running_mean is not None:
            self._update(mean, variance, count)
        return output

    def _has_peers(self) -> bool:
        return core.is_initialized() and bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def _factor(self) -> float:
        """The weight of the new statistics. momentum None: running statistics are the mean over all batches so far."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)

    def _plain(self, input: torch.Tensor, use_batch: bool) -> torch.Tensor:
        tracked = self.training and self.track_running_stats
        factor = self._factor() if tracked else 0.0
        keep = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if keep else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, use_batch, factor, self.eps)

    @torch.no_grad()
    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        factor = self._factor()
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.mul_(1 - factor).add_(mean.to(self.running_mean.dtype), alpha=factor)
        self.running_var.mul_(1 - factor).add_(unbiased.to(self.running_var.dtype), alpha=factor)


def _summed(values: torch.Tensor, name: str, group: int) -> torch.Tensor:
    return direct.allreduce(values, name, int(Sum), group)


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))


class _Normalize(torch.autograd.Function):
    """(output, mean, variance, count): the last three over all ranks, in float64, without gradient.

    Sums are sent as float64. So the variance, a difference of sums, loses no precision of float32 data.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float, name: str, group: int) -> Any:
        axes = [0, *range(2, x.dim())]
        wide = x.detach().double()
        own = torch.full((1,), x.numel() // x.shape[1], dtype=torch.float64, device=x.device)
        sums = _summed(torch.cat([wide.sum(axes), wide.square().sum(axes), own]), name, group)
        count = sums[-1]
        if count.device.type == "cpu" and count == 0:  # on a GPU the check would block the host; the result is NaN
            raise ValueError(f"{name}: every rank's batch is empty, got shape {tuple(x.shape)}")
        mean, square = (sums[:-1] / count).chunk(2)
        variance = (square - mean * mean).clamp(min=0)
        scale = (variance + eps).rsqrt()
        normal = (wide - _per_channel(mean, wide)).mul_(_per_channel(scale, wide)).to(x.dtype)
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.name, ctx.group = name, group
        ctx.mark_non_differentiable(mean, variance, count)
        output = normal if weight is None else normal * _per_channel(weight, x) + _per_channel(bias, x)
        return output.clone() if weight is None else output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_unused: Any) -> Any:
        normal, weight, scale, count = ctx.saved_tensors
        axes = [0, *range(2, grad.dim())]
        wide, x_hat = grad.double(), normal.double()
        grad_bias, grad_weight = wide.sum(axes), (wide * x_hat).sum(axes)
        sums = _summed(torch.cat([grad_bias, grad_weight]), f"{ctx.name}.grad", ctx.group)
        mean_grad, mean_product = (sums / count).chunk(2)
        factor = scale if weight is None else scale * weight.double()
        inner = wide - _per_channel(mean_grad, wide) - x_hat * _per_channel(mean_product, wide)
        grad_x = (inner * _per_channel(factor, wide)).to(grad.dtype)
        if weight is None:
            return grad_x, None, None, None, None, None
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None, None
