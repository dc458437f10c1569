"""Completes the futures of one group's calls, on a thread of its own.

A future must not complete in the caller: DDP asks for it when a bucket is ready, and would wait there instead of
computing. Calls of one group complete in their order, calls of two groups in any order. So one thread for all groups
could wait for a call that depends on a later one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import torch


class Completion:
    """Its thread starts with the first future."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def follow(self, work: Any, future: Any, devices: list[torch.device] | None) -> None:
        """The future completes with work.result(), or with the work's error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sirtaki {self._name}", daemon=True)
            self._thread.start()
        self._queue.put((work, future, devices))

    def stop(self) -> None:
        """After the futures that are under way."""
        if self._thread is not None:
            self._queue.put(None)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, future, devices = entry
            context: Any = contextlib.nullcontext()
            if devices:
                context = torch.cuda.stream(torch.cuda.Stream(devices[0]))
            with context:
                _complete(work, future)
            del entry, work, future  # an idle thread keeps no tensors


def _complete(work: Any, future: Any) -> None:
    try:
        work.finish()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(work.result())
