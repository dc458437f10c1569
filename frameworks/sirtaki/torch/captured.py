"""capture: a training step as one CUDA graph, which also reduces the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki import exchange
from sirtaki.job.rank import renewal
from sirtaki.native import core
from sirtaki.torch.gradients import direct
from sirtaki.torch.optimizer import ReducedSteps


class CapturedStep:
    """A captured step. A call copies the inputs into the graph, runs it, and returns the step's results.

    Every call returns the same tensors and overwrites their values.
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
        self._calls: list[str] = []  # the step's reductions, as texts
        self._result: Any = None
        self.job: int | None = None  # in which gradients are reduced

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """inputs: as many as at the capture, with the same shapes and dtypes; else ValueError.

        RuntimeError if a number of an optimizer has changed since the capture, such as the learning rate: the graph
        holds the old number. Also in another job than that of the capture, for the graph reduces over its ranks.
        """
        if self.job not in (None, renewal.jobs):
            raise RuntimeError("the step was captured in a job with other ranks; capture it again on every rank")
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
                        f"{after.get(name)} now, but the graph holds the old value. Give it as a tensor on the GPU, "
                        "whose value may change, or capture the step again"
                    )

    def _record(self, warmup: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warmup - 1):
                with direct.observing(self._reduction) as self._calls:
                    self._step(*self._inputs)
            _agree("\n".join(self._calls), "reduces other gradients, or in another order, than rank 0")
            self._run()  # makes NCCL's connections and Sirtaki's buffers: a graph must not make them
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
            raise RuntimeError(f"the step did not reduce '{left[0]}', but did so in the steps before the capture")
        return result


def _numbers_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Of each parameter group: the hyper-parameters that are numbers."""
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
    """Captures a training step (zero_grad, forward, backward, optimizer.step) as one CUDA graph. Every rank calls it.

    step: takes the inputs, returns tensors (the loss) or None. inputs: example tensors on the GPU; later inputs have
    the same shapes. optimizer: all optimizers that the step uses, distributed or not. warmup: number of real training
    steps with these inputs before the capture, at least 3. NCCL reduces the gradients within the graph, in buckets
    while backward runs; with shard_optimizer_state it scatters them, and gathers the updated parameters. The ranks
    compare once, in this call, which gradients they reduce and in which order.

    The step must do the same at every call: no .item(), no branch on values (a gradient scaler has one), no hooks that
    act on the host. Optimizers must allow a capture (`capturable=True` for Adam and its variants). RuntimeError on
    every rank, with the rank and the reason, if the step cannot be captured or the ranks cannot use NCCL together.
    All ranks must call the captured step equally often.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("capture() needs a CUDA GPU, but this process has none")
    if not inputs or any(not tensor.is_cuda for tensor in inputs):
        raise ValueError("capture() needs example inputs, all on the GPU")
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    captured = CapturedStep(step, inputs, optimizers)
    reduces = any(isinstance(entry, ReducedSteps) for entry in optimizers)
    captured.job = renewal.jobs if reduces else None
    if reduces and core.is_initialized() and core.size() > 1:
        captured._reduction = direct.connect(inputs[0].device.index)
    captured._record(max(warmup, 3))
    return captured
