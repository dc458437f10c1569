"""The promise of one call of a torch group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as TorchWork

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core
from sirtaki.torch.ops.streams import current_stream
from sirtaki.torch.process_group.completion import Completion

_STEP = threading.Lock()  # so that one thread takes the last step of a work


class Work(TorchWork):
    """wait() raises the core's error. It returns on the host when the result is there; on a GPU when it is queued."""

    def __init__(
        self,
        work: Any,
        device: int,
        results: list[torch.Tensor],
        last_step: Callable[[Any], None] | None,
        completion: Completion | None,
        on_failure: Callable[[], None],
    ) -> None:
        """device: a GPU's number or -1. last_step: what is to do with the core's result, once, before it is used.
        completion: of calls that complete in one order; None for a call with an order of its own. on_failure: called
        once if the call failed on all ranks.
        """
        TorchWork.__init__(self)
        self._work = work
        self._device = device
        self._results = results
        self._last_step = last_step
        self._completion = completion
        self._on_failure = on_failure
        self._error: BaseException | None = None
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """timeout: after it the job fails, on every rank. Without it, the job's limit for late ranks holds."""
        seconds = timeout.total_seconds() if timeout else 0.0
        if seconds > 0 and not self._work.done():
            timer = threading.Timer(seconds, self._fail, [seconds])
            timer.daemon = True
            timer.start()
            try:
                return self.finish()
            finally:
                timer.cancel()
        return self.finish()

    def finish(self) -> bool:
        """Waits without a limit. True, or raises, each time."""
        if self._error is not None:
            raise self._error
        try:
            self._work.wait(None if self._device < 0 else current_stream(self._device))
            if self._last_step is not None:
                self._take_last_step()
        except Exception as error:
            if self._error is None and isinstance(error, SirtakiInternalError):
                self._on_failure()
            self._error = error
            raise
        return True

    def synchronize(self) -> None:
        self.finish()

    def _take_last_step(self) -> None:
        with _STEP:
            step, self._last_step = self._last_step, None
            if step is not None:
                with torch.no_grad():
                    step(self._work)

    def _fail(self, seconds: float) -> None:
        if not self._work.done():
            text = f"a call of torch.distributed was not done within {seconds:g} s, the limit of its wait()"
            core.fail("exception", text)  # this rank gives up; which rank is late is not known here

    def is_completed(self) -> bool:
        if not self._work.done():
            return False
        if self._error is None:
            try:
                self.finish()
            except Exception as error:
                self._error = error
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result; wait() first."""
        return self._results

    def get_future(self) -> Any:
        """A torch future of result(). Returns at once: the group's completion thread waits."""
        if self._future is None:
            device = None if self._device < 0 else torch.device("cuda", self._device)
            completion = self._completion or Completion("transfer")
            self._future = completion.future_of(self, device)
            if self._completion is None:
                completion.stop()
        return self._future
