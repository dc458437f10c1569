"""Reduces gradients by NCCL on a separate stream, without votes: for steps that are captured into a CUDA graph.

Every rank must make the same calls in the same order. So the first steps use the engine, which compares the ranks, and
their calls are recorded. Then the ranks compare the records. A captured step must make exactly the recorded calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sirtaki import exchange
from sirtaki.native import core
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.tensors import Descriptor, describe

BUCKET_BYTES = 25 << 20  # gradients are sent when so many bytes are ready, while backward still runs
OWN_DTYPE = -1
NOTHING = (0, 1.0, 1.0)  # in place of an operation


class DirectReduction:
    """While it is `in_use`, reducers send gradients to it and not to the engine. Each bucket is one NCCL group."""

    def __init__(self, communicator: Any, stream: torch.cuda.Stream, casts: bool = False) -> None:
        self.casts = casts
        self._communicator = communicator
        self._stream = stream
        self._bucket: list[Descriptor] = []
        self._how: tuple[int, float, float, int] = (0, 1.0, 1.0, OWN_DTYPE)
        self._bytes = 0
        self._joined = True
        self._agreed: list[str] = []
        self.calls: list[str] = []

    def send(
        self,
        name: str,
        tensors: Sequence[Descriptor],
        nbytes: int,
        how: tuple[int, float, float],
        wire: int = OWN_DTYPE,
    ) -> Ticket:
        """Reduces the tensors, nbytes in all, in place. how: op, prescale, postscale. wire: the number of the dtype in
        which they are sent.
        """
        self._note(call_text(name, tensors, how, wire))
        if (*how, wire) != self._how:
            self.flush()
        self._how = (*how, wire)
        self._bucket += tensors
        self._bytes += nbytes
        if self._bytes >= BUCKET_BYTES:
            self.flush()
        return Ticket(self)

    def reducescatter(self, name: str, tensor: Descriptor, how: tuple[int, float, float]) -> EventTicket:
        """Reduces a tensor that has one row for each rank; writes this rank's row."""
        self._note(call_text(name, [tensor], how))
        return self._queue(lambda: self._communicator.reducescatter(tensor, *how))

    def allgather(self, name: str, tensor: Descriptor) -> EventTicket:
        """Reads this rank's row, and writes a tensor that has one row for each rank. tensor: describes the latter."""
        self._note(call_text(name, [tensor], NOTHING))
        return self._queue(lambda: self._communicator.allgather(tensor))

    def _note(self, call: str) -> None:
        number = len(self.calls)
        if number >= len(self._agreed) or self._agreed[number] != call:
            due = self._agreed[number] if number < len(self._agreed) else "the end of the step"
            raise RuntimeError(f"the step reduces '{call}', but the steps before the capture reduced '{due}' here")
        self.calls.append(call)

    def _queue(self, call: Callable[[], None]) -> EventTicket:
        self.flush()
        self._stream.wait_stream(torch.cuda.current_stream())
        call()
        self._joined = False
        return EventTicket(self._stream)

    def flush(self) -> None:
        """Queues the bucket on the stream."""
        if self._bucket:
            self._stream.wait_stream(torch.cuda.current_stream())
            self._communicator.allreduce(self._bucket, *self._how)
            self._joined = False
        self._bucket, self._bytes = [], 0

    def join(self) -> None:
        """Makes the current stream wait for all gradients that were sent."""
        self.flush()
        if not self._joined:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._joined = True

    def check(self) -> None:
        """Raises an error that NCCL has found since the last call."""
        self._communicator.check()

    @contextlib.contextmanager
    def in_use(self, agreed: list[str]) -> Iterator[None]:
        """A context in which the gradients of every optimizer are sent here. agreed: the calls that all ranks will
        make, in this order; RuntimeError for any other call.
        """
        global active, casts
        active, self._agreed, self.calls = self, agreed, []
        casts = self.casts
        core.divert_gradients(True)
        try:
            yield
        finally:
            core.divert_gradients(False)
            active, casts = None, False


class Ticket:
    """Takes the place of a Work."""

    def __init__(self, reduction: DirectReduction) -> None:
        self._reduction = reduction

    def done(self) -> bool:
        return True

    def wait(self, stream: int | None = None) -> None:
        self._reduction.join()


class EventTicket:
    """Takes the place of a Work that later calls on the stream do not delay."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def done(self) -> bool:
        return True

    def wait(self, stream: int | None = None) -> None:
        torch.cuda.current_stream().wait_event(self._event)


active: DirectReduction | None = None
casts = False  # whether the call of NCCL also casts tensors that are sent in another dtype
observed: list[str] | None = None  # the record of all reductions through the engine; None if nothing is recorded


@contextlib.contextmanager
def observing(by: DirectReduction | None) -> Iterator[list[str]]:
    """A context that records the calls of reducers in the list that it gives, as they will make them to `by`."""
    global observed, casts
    calls: list[str] = []
    observed = calls
    casts = by is not None and by.casts
    core.divert_gradients(True)
    try:
        yield calls
    finally:
        core.divert_gradients(False)
        observed, casts = None, False


def allreduce(values: torch.Tensor, name: str, op: int, group: int) -> torch.Tensor:
    """Reduces a small tensor in place, by the engine or within a step that is captured."""
    how = (op, 1.0, 1.0)
    if active is not None and group == 0:
        active.send(name, [describe(values, values)], values.nbytes, how).wait()
        return values
    if observed is not None:
        observed.append(call_text(name, [describe(values, values)], how))
    return verbs.allreduce([values], name, (*how, group), outputs=[values])[0]


def call_text(name: str, tensors: Sequence[Descriptor], how: tuple[int, float, float], wire: int = OWN_DTYPE) -> str:
    """All properties of a call that must be equal on all ranks."""
    travels = "" if wire == OWN_DTYPE else f" as {wire}"
    return f"{name} {[(dtype, shape) for _, _, dtype, shape, _ in tensors]} {how}{travels}"


def connect(device: int) -> DirectReduction:
    """Every rank calls it. RuntimeError on every rank, with the reason, if the ranks cannot use NCCL together."""
    cards = exchange.allgather_object(core.gpu_card(device), "capture.cards")
    nccl, kernels, why_not = core.common_gpu_capabilities(cards)
    if not nccl:
        raise RuntimeError(f"a step can be captured only if NCCL reduces its gradients, but: {why_not}")
    own = core.nccl_unique_id() if core.rank() == 0 else None
    identity = exchange.broadcast_bytes(own, 0, "capture.id")
    stream = torch.cuda.Stream(device, priority=-1)
    communicator = core.DirectNccl(identity, core.rank(), core.size(), device, stream.cuda_stream, kernels)
    return DirectReduction(communicator, stream, casts=kernels)
