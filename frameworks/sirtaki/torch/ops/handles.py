"""Integer handles of asynchronous calls: `poll` checks whether a call is done, `synchronize` waits for its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.torch.ops.streams import stream_of
from sirtaki.torch.ops.tensors import Descriptor

Finish = Callable[[Any], Any]


class Handle(int):
    """The number of an asynchronous call. If the program drops it, the call still completes, but its result is lost."""

    __slots__ = ()

    def __del__(self) -> None:
        if _pending is not None:  # None while the interpreter ends
            _pending.pop(self, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)  # a copy is a plain number, whose end must not drop the call


_numbers = itertools.count(1)
_pending: dict[int, tuple[Any, Finish, Sequence[Descriptor]]] = {}


def submit(verb: str, name: str, tensors: Sequence[Descriptor], finish: Finish, **options: Any) -> int:
    """Queues one request. name: "" if the core is to number it. finish(work) makes the result when the work is done."""
    full_name = f"{verb}.{name}" if name else ""
    stream = stream_of(tensors) or 0
    work = core.submit(core.VERBS[verb], full_name, tensors, site=call_site(), stream=stream, **options)
    return register(work, finish, tensors)


def register(work: Any, finish: Finish, tensors: Sequence[Descriptor]) -> int:
    """A handle for a submitted request."""
    handle = Handle(next(_numbers))
    _pending[int(handle)] = (work, finish, tensors)
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return at once. ValueError if the handle is unknown or synchronized already.

    >>> handle = hvd.allreduce_async(torch.ones(1))
    >>> hvd.poll(handle) in (True, False)  # does not block
    True
    >>> result = hvd.synchronize(handle)
    """
    entry = _pending.get(handle)
    if entry is None:
        raise ValueError(f"handle {handle!r} is not pending: it is unknown, or synchronize() has been called with it")
    return entry[0].done()


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous call and returns its result; None if the handle is unknown or was synchronized already.

    On a GPU it returns when all work is queued. The current stream waits for the results, so work that the program
    queues there afterwards sees them; the host does not wait.
    ValueError or SirtakiInternalError if the call failed; the handle is then no longer valid.

    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([1, 2]), root_rank=0))
    tensor([1, 2])
    """
    if type(handle) is not Handle and (isinstance(handle, bool) or not isinstance(handle, int)):
        raise ValueError(f"handle must be an integer that an asynchronous call returned, got {handle!r}")
    entry = _pending.get(handle)
    if entry is None:
        return None
    work, finish, tensors = entry
    try:
        work.wait(stream_of(tensors))
    except KeyboardInterrupt:
        raise  # the call still runs: the handle stays valid
    except BaseException:
        _pending.pop(handle, None)
        raise
    _pending.pop(handle, None)
    return finish(work)
