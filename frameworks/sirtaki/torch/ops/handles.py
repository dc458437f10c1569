"""Integer handles of asynchronous calls: `poll` asks, `synchronize` waits and gives the result."""

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
    """The number of an asynchronous call. Without it nobody can wait for the call, which then ends by itself."""

    __slots__ = ()

    def __del__(self) -> None:
        if _pending is not None:  # None: the interpreter ends
            _pending.pop(self, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)  # a copy does not stand for the call


_numbers = itertools.count(1)
_pending: dict[int, tuple[Any, Finish, Sequence[Descriptor]]] = {}


def submit(verb: str, name: str, tensors: Sequence[Descriptor], finish: Finish, **options: Any) -> int:
    """Queues one request. name: "" to let the core number it. finish(work) makes the result once the work is done."""
    full_name = f"{verb}.{name}" if name else ""
    stream = stream_of(tensors) or 0
    work = core.submit(core.VERBS[verb], full_name, tensors, site=call_site(), stream=stream, **options)
    return register(work, finish, tensors)


def register(work: Any, finish: Finish, tensors: Sequence[Descriptor]) -> int:
    """A handle for what has been submitted."""
    handle = Handle(next(_numbers))
    _pending[int(handle)] = (work, finish, tensors)
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return at once. ValueError for a handle that is unknown or already finished."""
    entry = _pending.get(handle)
    if entry is None:
        raise ValueError(f"handle {handle!r} is not pending: it is unknown, or synchronize() has been called with it")
    return entry[0].done()


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous call and returns its result; None if the handle is unknown or already finished.

    On a GPU it returns when everything is queued, and the current stream waits for the results: what the program
    queues there from now on sees them, and the host goes on.
    Raises ValueError or SirtakiInternalError if the call failed; the handle is finished then as well.
    """
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise ValueError(f"handle must be an integer that an asynchronous call returned, got {handle!r}")
    entry = _pending.get(handle)
    if entry is None:
        return None
    work, finish, tensors = entry
    try:
        work.wait(stream_of(tensors))
    except KeyboardInterrupt:
        raise  # still running: the handle stays good
    except BaseException:
        _pending.pop(handle, None)
        raise
    _pending.pop(handle, None)
    return finish(work)
