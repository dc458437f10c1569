"""send and receive: one tensor from one rank to one other, without any part of the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki.checks.arguments import checked_number, checked_tag
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set, require_id
from sirtaki.torch.ops import plain_calls
from sirtaki.torch.ops.handles import submit, synchronize
from sirtaki.torch.ops.tensors import HOST, describe


def _checked(verb: str, peer: int, tag: int, process_set: ProcessSet) -> tuple[int, int, int]:
    """(the other rank, tag, process set's id). ValueError if one is wrong."""
    group = require_id(process_set)
    peer = checked_number("dst" if verb == "send" else "src", peer, core.size() - 1)
    tag = checked_tag(tag)
    members = process_set.ranks
    if members is not None and peer not in members:
        raise ValueError(f"{verb}: rank {peer} is not among ranks {', '.join(map(str, members))} of the process set")
    return peer, tag, group


def _prepared(verb: str, tensor: torch.Tensor, peer: int, tag: int, process_set: ProcessSet) -> Callable[[bool], int]:
    """What begins it, and gives its handle. All that can be wrong with the call is refused here."""
    peer, tag, group = _checked(verb, peer, tag, process_set)
    described = describe(tensor, tensor if verb == "receive" else None)
    if described[4] != HOST:
        raise ValueError(f"{verb} takes tensors in host memory, got one on {tensor.device}")
    result = tensor if verb == "receive" else None
    options = {"root": peer, "tag": tag, "process_set": group, "keep": tensor}
    return lambda awaited: submit(verb, "", [described], lambda _: result, awaited=awaited, **options)


def _nothing(work: Any) -> None:
    return None


def _start(verb: str, tensor: torch.Tensor, peer: int, tag: int, process_set: ProcessSet) -> int:
    rank, number, group = _checked(verb, peer, tag, process_set)
    how, finish = plain_calls.moved(group), _nothing if verb == "send" else core.Work.outcome
    handle = plain_calls.start(core.VERBS[verb], tensor, tensor, "", how, rank, number, finish)
    return _prepared(verb, tensor, peer, tag, process_set)(False) if handle is None else handle


def _run(verb: str, tensor: torch.Tensor, peer: int, tag: int, process_set: ProcessSet) -> Any:
    rank, number, group = _checked(verb, peer, tag, process_set)
    result = plain_calls.run(core.VERBS[verb], tensor, tensor, "", plain_calls.moved(group), rank, number)
    return synchronize(_prepared(verb, tensor, peer, tag, process_set)(True)) if result is None else result


def isend(tensor: torch.Tensor, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> int:
    """Begins to send the tensor to rank dst (a global rank): a handle. Do not change the tensor before it is done.

    It is done once dst has received the tensor, whatever its size. Host memory only, no gradient.
    HorovodInternalError in synchronize(), on both ranks, if dst receives another dtype or number of elements; and if
    dst has left, or the job has failed.

    >>> sent = hvd.isend(torch.tensor([1, 2]), dst=0)
    >>> hvd.recv(torch.zeros(2, dtype=torch.int64), src=0)
    tensor([1, 2])
    >>> hvd.synchronize(sent)
    """
    return _start("send", tensor, dst, tag, process_set)


def irecv(tensor: torch.Tensor, src: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> int:
    """Begins to receive into the tensor what rank src (a global rank) sends with this tag: a handle for the tensor.

    Sends and receives of two ranks with one tag and process set match in the order of the calls. dtype and number of
    elements must be those of the sent tensor. Errors as isend.

    >>> received = hvd.irecv(torch.zeros(1), src=0, tag=7)
    >>> hvd.send(torch.ones(1), dst=0, tag=7)
    >>> hvd.synchronize(received)
    tensor([1.])
    """
    return _start("receive", tensor, src, tag, process_set)


def send(tensor: torch.Tensor, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """As isend, and waits until dst has received the tensor. Two ranks that both send first wait for ever.

    >>> received = hvd.irecv(torch.zeros(1), src=0)
    >>> hvd.send(torch.ones(1), dst=0)
    >>> hvd.synchronize(received)
    tensor([1.])
    """
    _run("send", tensor, dst, tag, process_set)


def recv(tensor: torch.Tensor, src: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """As irecv, and waits. Returns the tensor itself.

    >>> sent = hvd.isend(torch.ones(2), dst=0)
    >>> hvd.recv(torch.zeros(2), src=0)
    tensor([1., 1.])
    """
    return _run("receive", tensor, src, tag, process_set)


class P2POp:
    """One send or receive of a batch: the function isend or irecv, and its arguments.

    >>> hvd.P2POp(hvd.isend, torch.ones(1), 0, tag=3).tag
    3
    """

    def __init__(
        self,
        op: Callable[..., int],
        tensor: torch.Tensor,
        peer: int,
        tag: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if op is not isend and op is not irecv:
            raise ValueError(f"op must be isend or irecv, got {op!r}")
        self.op, self.tensor, self.peer, self.tag, self.process_set = op, tensor, peer, tag, process_set


def batch_isend_irecv(ops: Sequence[P2POp]) -> list[int]:
    """Begins all of them, in their order, and wakes the engine once. Returns their handles.

    >>> value = torch.zeros(1)
    >>> handles = hvd.batch_isend_irecv([hvd.P2POp(hvd.irecv, value, 0), hvd.P2POp(hvd.isend, torch.ones(1), 0)])
    >>> [hvd.synchronize(handle) for handle in handles]
    [tensor([1.]), None]
    """
    listed: list[Any] = list(ops)
    for op in listed:
        if not isinstance(op, P2POp):
            raise ValueError(f"batch_isend_irecv takes P2POp objects, got {op!r}")
    # If one is wrong, none begins: the others would meet what is sent later.
    starts = [
        _prepared("send" if op.op is isend else "receive", op.tensor, op.peer, op.tag, op.process_set) for op in listed
    ]
    return [start(number < len(starts)) for number, start in enumerate(starts, 1)]
