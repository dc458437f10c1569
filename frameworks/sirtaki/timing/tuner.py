"""`--autotune`: tries bucket sizes and fusion thresholds while the job trains, and keeps what makes steps faster.

Rank 0 measures and decides. All ranks count the same steps, so they receive its decision at the end of the same step,
and the next step is made with it on all of them. A candidate changes what travels together, never how it is computed.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import struct
import time
from collections.abc import Callable
from typing import TextIO

from sirtaki import exchange, settings
from sirtaki.native import core
from sirtaki.timing.halving import Candidate, Search, candidates, halving

_THRESHOLD = 128 << 20  # bytes; the core's own
_DECISION = struct.Struct("<dqq")  # bucket, threshold, steps until the next decision; 0: the search is over
# Horovod's, and two more. The score is steps in a second.
_COLUMNS = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
    "tensor_fusion_threshold,score,bucket_factor,step_ms"
)
_NOT_BEGUN = "nothing was tried: the job has one rank only, or no DistributedOptimizer of torch that can be tuned"
_NOT_OVER = "nothing was found: the job ended before the search did; fewer steps for each measurement make it shorter"

_log = logging.getLogger("sirtaki")
_unsaid = ""  # what is to be said if the job ends now


class Tuner:
    """set_bucket: gets the factor for the size of buckets, at the end of a step, for the next one. now: seconds."""

    def __init__(
        self,
        chosen: settings.TunerSettings,
        set_bucket: Callable[[float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chosen = chosen
        self._set_bucket = set_bucket
        self._now = now
        self._is_first = core.rank() == 0
        self._present = Candidate(1.0, settings.number("FUSION_THRESHOLD", _THRESHOLD, least=0))
        self._current = self._present
        self._until = 1  # steps until the next decision; the first step is not measured
        self._ends: list[float] = []  # of the steps since the last decision
        self._decisions = 0
        self._search: Search | None = None
        self._log_file: TextIO | None = None
        self.over = False

    def step_ended(self) -> None:
        """To be called on all ranks at the end of each step."""
        if self.over:
            return
        if self._is_first:
            self._ends.append(self._now())
        self._until -= 1
        if self._until == 0:
            self._take(exchange.broadcast_bytes(self._decide() if self._is_first else None, 0, self._name()))

    def _name(self) -> str:
        self._decisions += 1
        return f"autotune.{self._decisions}"

    def _take(self, decision: bytes) -> None:
        bucket, threshold, steps = _DECISION.unpack(decision)
        if bucket != self._current.bucket:
            self._set_bucket(bucket)
        if self._is_first and threshold != self._current.threshold:
            core.set_fusion_threshold(threshold)
        self._current = Candidate(bucket, threshold)
        self._until = steps
        self.over = steps == 0

    # On rank 0.

    def _decide(self) -> bytes:
        try:
            if self._search is None:
                self._open_log()
                self._search = halving(candidates(self._present))
                choice, samples = next(self._search)
            else:
                choice, samples = self._search.send(self._measured())
        except StopIteration as end:
            result = end.value
            self._tell(result.kept, result.won, result.step)
            return _DECISION.pack(*result.kept, 0)
        self._ends.clear()
        return _DECISION.pack(*choice, self._chosen.warmup + 1 + self._chosen.steps * samples)

    def _measured(self) -> float:
        """The median time of the steps after the warm-up, in seconds."""
        ends = self._ends[self._chosen.warmup :]
        step = statistics.median(after - before for before, after in itertools.pairwise(ends))
        if self._log_file is not None:
            bucket, threshold = self._current
            self._log_file.write(f"0,0,0,1,0,{threshold / (1 << 20):g},{1 / step:.6g},{bucket:g},{step * 1e3:.6g}\n")
            self._log_file.flush()
        return step

    def _open_log(self) -> None:
        if self._chosen.log:
            try:
                self._log_file = open(self._chosen.log, "w", encoding="utf-8")  # noqa: SIM115
                self._log_file.write(_COLUMNS + "\n")
            except OSError as error:
                _log.warning("autotune: no log: %s", error)

    def _tell(self, kept: Candidate, won: float, step: float) -> None:
        global _unsaid
        _unsaid = ""
        if self._log_file is not None:
            self._log_file.close()
        if kept == self._present:
            _log.warning("autotune: nothing was won, so nothing is changed; a step takes %.3g ms", step * 1e3)
        else:
            what = f"buckets of {kept.bucket:g} times the usual size, fusion threshold {kept.threshold >> 20} MiB"
            _log.warning("autotune: %s: %.1f%% less time for a step, which takes %.3g ms", what, won * 100, step * 1e3)


def of_job(set_bucket: Callable[[float], None]) -> Tuner | None:
    """A tuner for the caller, if the job shall be tuned and is not yet: the first optimizer of a job gets it."""
    global _unsaid
    if _unsaid != _NOT_BEGUN or core.size() == 1:
        return None
    _unsaid = _NOT_OVER
    return Tuner(settings.tuner(), set_bucket)


def begin_job() -> None:
    global _unsaid
    _unsaid = _NOT_BEGUN if settings.tuner().on else ""


def end_job(own_rank: int) -> None:
    """Says why nothing was found, if the search has not begun or is not over."""
    if _unsaid and own_rank == 0:
        _log.warning("autotune: %s", _unsaid)
