"""capture: a training step as one CUDA graph, gradients reduced within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki import exchange
from sirtaki.native import core
from sirtaki.torch.gradients import direct
from sirtaki.torch.optimizer import ReducedSteps


class CapturedStep:
    """A captured step. Calling it with new inputs runs the step on them and returns what the step returned.

    The tensors returned are the same at every call, and are overwritten by the next one.
    """

    def __init__(
        self, step: Callable[..., Any], inputs: tuple[torch.Tensor, ...], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._inputs = tuple(tensor.detach().clone() for tensor in inputs)
        self._optimizers = optimizers
        self._numbers = _numbers_of(optimizers)
        self._graph = torch.cuda.CUDAGraph()
        self._step = step
        self._reduction: direct.DirectReduction | None = None
        self._calls: list[str] = []  # of the step's reductions
        self._result: Any = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Inputs of the same shapes, dtypes and number as those of the capture; ValueError for others.

        RuntimeError if a number of an optimizer (a learning rate, say) has changed since the capture, for it is part of
        the graph.
        """
        if len(inputs) != len(self._inputs):
            raise ValueError(f"the step was captured with {len(self._inputs)} inputs, got {len(inputs)}")
        for number, (static, given) in enumerate(zip(self._inputs, inputs, strict=True)):
            if static.shape != given.shape or static.dtype != given.dtype:
                raise ValueError(
                    f"input {number} was captured as {tuple(static.shape)} {static.dtype}, got {tuple(given.shape)} "
                    f"{given.dtype}"
                )
        self._check_numbers()
        for static, given in zip(self._inputs, inputs, strict=True):
            if static.data_ptr() != given.data_ptr():
                static.copy_(given, non_blocking=True)
        if self._reduction is not None:
            self._reduction.check()
        self._graph.replay()
        return self._result

    def _check_numbers(self) -> None:
        now = _numbers_of(self._optimizers)
        for before, after in zip(self._numbers, now, strict=True):
            for name in before:
                if before[name] != after.get(name):
                    raise RuntimeError(
                        f"the optimizer's {name} was {before[name]} when the step was captured and is "
                        f"{after.get(name)} now, but it is part of the graph. Give it as a tensor on the GPU, whose "
                        "value may change, or capture the step again"
                    )

    def _record(self, warmup: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warmup - 1):
                with direct.observing(self._reduction) as self._calls:
                    self._step(*self._inputs)
            _agree("\n".join(self._calls), "reduces other gradients, or in another order, than rank 0")
            self._run()  # makes NCCL's connections and our buffers, which a graph must not
            torch.cuda.synchronize()
            for optimizer in self._optimizers:
                optimizer.zero_grad(set_to_none=True)
            reason = ""
            try:
                with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                    self._result = self._run()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        torch.cuda.current_stream().wait_stream(stream)
        _agree_on_success(reason)

    def _run(self) -> Any:
        if self._reduction is None:
            return self._step(*self._inputs)
        with self._reduction.in_use(self._calls):
            result = self._step(*self._inputs)
            self._reduction.join()
        left = self._calls[len(self._reduction.calls) :]
        if left:
            raise RuntimeError(f"the step does not reduce '{left[0]}', on which the ranks have agreed")
        return result


def _numbers_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The hyper-parameters that are numbers, by group."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [{k: v for k, v in group.items() if isinstance(v, (int, float, tuple))} for group in groups]


def _agree(text: str, complaint: str) -> None:
    texts = exchange.allgather_object(text, "capture.calls")
    odd = next((rank for rank, other in enumerate(texts) if other != texts[0]), None)
    if odd is None:
        return
    pairs = zip(texts[0].splitlines(), texts[odd].splitlines(), strict=False)
    first = next((f"'{a}' on rank 0, '{b}' on rank {odd}" for a, b in pairs if a != b), "one has more of them")
    raise RuntimeError(f"the step cannot be captured: rank {odd} {complaint}: {first}")


def _agree_on_success(reason: str) -> None:
    reasons = exchange.allgather_object(reason, "capture.reasons")
    failed = next((rank for rank, other in enumerate(reasons) if other), None)
    if failed is not None:
        raise RuntimeError(f"the step cannot be captured: rank {failed}: {reasons[failed]}")


def capture(
    step: Callable[..., Any],
    *inputs: torch.Tensor,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    warmup: int = 3,
) -> CapturedStep:
    """A training step (zero_grad, forward, backward, optimizer.step) as one CUDA graph, launched as a whole.

    step: takes the inputs, returns tensors (the loss) or nothing. inputs: example tensors on the GPU; shapes stay.
    optimizer: all that the step uses, distributed or not. Every rank calls it; `warmup` steps, 3 at least, are taken
    for real, with these inputs, before the capture. Gradients are reduced within the graph by NCCL, in buckets while
    backward goes on; which and in what order, the ranks compare once, here.

    The step must do the same at every call: no .item(), no branch on values (a gradient scaler has one), no hooks that
    act on the host, optimizers that allow it (`capturable=True` in Adam's family). RuntimeError on every rank, with the
    rank and the reason, where it cannot be captured, and if the ranks cannot use NCCL together. Ranks must call the
    captured step equally often.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("capture needs a CUDA GPU, and this process has none")
    if not inputs or any(not tensor.is_cuda for tensor in inputs):
        raise ValueError("capture takes example inputs on the GPU")
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    captured = CapturedStep(step, inputs, optimizers)
    reduces = any(isinstance(entry, ReducedSteps) for entry in optimizers)
    if reduces and core.is_initialized() and core.size() > 1:
        captured._reduction = direct.connect(inputs[0].device.index)
    captured._record(max(warmup, 3))
    return captured
