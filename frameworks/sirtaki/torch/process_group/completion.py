"""Completes the futures of one group's calls, on a thread of its own.

A future must not complete in the caller: DDP asks for it when a bucket is ready, and would wait there instead of
computing. Calls of one group complete in their order, calls of two groups in any order. So one thread for all groups
could wait for a call that depends on a later one.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

_callbacks = threading.local()  # `run` is True within a function that waited for a future


def in_callback() -> bool:
    """Whether this is called by a function that waited for a future, as DDP's hooks give some."""
    return getattr(_callbacks, "run", False)


def _mark_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of torch's futures, given a function that is in_callback() while it runs.

    If the future is complete already, torch runs the function at once, on the thread that gave it. On another rank the
    same function may run on a thread of this module. Only torch knows which of the two happens.
    """

    @functools.wraps(method)
    def marking(future: Any, callback: Callable[[Any], Any]) -> Any:
        @functools.wraps(callback)
        def run(done: Any) -> Any:
            before, _callbacks.run = in_callback(), True
            try:
                return callback(done)
            finally:
                _callbacks.run = before

        return method(future, run)

    return marking


@functools.cache
def _mark_all_callbacks() -> None:
    """Its object of a future, which hooks get, is C++'s own: no subclass of ours can take its place."""
    for name in ("then", "add_done_callback"):
        setattr(torch._C.Future, name, _mark_callbacks(getattr(torch._C.Future, name)))


class Completion:
    """Its thread starts with the first future. A function that waited for a future may make calls itself: the future of
    such a call completes on another thread, since the function may wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def future_of(self, work: Any, device: torch.device | None) -> Any:
        """Completes with work.result(), or with the work's error. device: a GPU, whose stream then waits."""
        _mark_all_callbacks()
        if self._thread is threading.current_thread():
            within = Completion(f"{self._name} within")
            future = within.future_of(work, device)
            within.stop()
            return future
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sirtaki {self._name}", daemon=True)
            self._thread.start()
        finished: Any = torch.futures.Future(devices=None if device is None else [device])
        # By then(), an error reaches C++ as one. set_exception() makes it a value there, which DDP takes for tensors.
        future = finished.then(lambda _: _result(work))
        self._queue.put((work, finished, device))
        return future

    def stop(self) -> None:
        """After the futures that are under way."""
        if self._thread is not None:
            self._queue.put(None)

    def _run(self) -> None:
        _callbacks.run = True  # for functions of C++ that call this group
        while (entry := self._queue.get()) is not None:
            work, finished, device = entry
            with contextlib.nullcontext() if device is None else torch.cuda.stream(torch.cuda.Stream(device)):
                with contextlib.suppress(Exception):  # _result() raises it
                    work.finish()
                finished.set_result(None)
            del entry, work, finished  # an idle thread keeps no tensors


def _result(work: Any) -> list[torch.Tensor]:
    if (error := work.exception()) is not None:
        raise error
    return work.result()
