"""The energy that this host's processors (RAPL) and this rank's GPU (NVML) have used, where the system lets us read it.

RAPL counts a whole host, so only its first rank reports that.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sirtaki.native import core

_RAPL = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"
_MOST_WATTS = 500  # of one package
_READINGS = 3  # of RAPL, in the shortest time in which its counter can wrap

_Counter = Callable[[], float]  # joules since any moment


class _Meter:
    """reasons: why a source is missing."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.sources: list[str] = []
        self._counters: list[_Counter] = []
        self._last: list[float] = []
        self._gpus: set[str] = set()
        self._lock = threading.Lock()
        if core.local_rank() == 0:
            self._open("RAPL", _rapl_counters)
        else:
            self.reasons.append("RAPL: the first rank of this host reports it")
        self.joules = 0.0
        self._ends = threading.Event()
        limits = [counter.limit for counter in self._counters if isinstance(counter, _RaplCounter)]
        if limits:
            pause = min(limits) / _READINGS  # minutes
            threading.Thread(target=self._keep_reading, args=(pause,), name="sirtaki-energy", daemon=True).start()

    def _keep_reading(self, pause: float) -> None:
        with contextlib.suppress(OSError):  # the next report shows it
            while not self._ends.wait(pause):
                self.read()

    def close(self) -> None:
        """Ends the thread, at some later moment."""
        self._ends.set()

    def add_gpu(self, uuid: str) -> None:
        """Counts this GPU from now on, too."""
        if uuid not in self._gpus:
            self._gpus.add(uuid)
            self._open("NVML", lambda: [_nvml_counter(uuid)])

    def _open(self, source: str, make: Callable[[], list[_Counter]]) -> None:
        try:
            counters = make()
            readings = [counter() for counter in counters]
        except OSError as error:
            self.reasons.append(f"{source}: {error.strerror or error}")
            return
        with self._lock:
            self._counters += counters
            self._last += readings
        if source not in self.sources:
            self.sources.append(source)

    def read(self) -> float:
        """Joules since the meter was made."""
        with self._lock:
            now = [counter() for counter in self._counters]
            self.joules += sum(max(0.0, new - old) for new, old in zip(now, self._last, strict=True))
            self._last = now
            return self.joules


class _RaplCounter:
    """One package. Its counter wraps at a value that the kernel names. limit: seconds until it may do so again."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self.limit = self._range * 1e-6 / _MOST_WATTS
        self._last = self._raw()
        self._read_at = time.monotonic()
        self._total = 0

    def _raw(self) -> int:
        return int(self._file.read_text())

    def __call__(self) -> float:
        now, at = self._raw(), time.monotonic()
        if at - self._read_at > self.limit:  # the next calls find that, too
            raise OSError(None, f"RAPL was not read for {at - self._read_at:.0f} s; its counter may have wrapped")
        self._total += (now - self._last) % (self._range + 1)
        self._last, self._read_at = now, at
        return self._total * 1e-6


def _rapl_counters() -> list[_Counter]:
    """The packages, without their parts (which have a second colon). OSError if none can be read."""
    folders = sorted(_RAPL.glob("intel-rapl:*"))
    if not folders:
        raise OSError(None, f"{_RAPL} has no intel-rapl, as in most virtual machines")
    return [_RaplCounter(folder) for folder in folders if folder.name.count(":") == 1]


def _nvml_counter(gpu: str) -> _Counter:
    library = ctypes.CDLL(_NVML)  # OSError with the loader's message
    _check(library.nvmlInit_v2(), "nvmlInit")
    device = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device)), gpu)
    millijoules = ctypes.c_ulonglong()

    def read() -> float:
        code = library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        _check(code, f"the energy of {gpu}")
        return millijoules.value * 1e-3

    read()
    return read


def _check(code: int, what: str) -> None:
    if code:
        raise OSError(None, f"NVML returned {code} for {what}")


_meter: _Meter | None = None


def start() -> None:
    """Counts from now on; init() calls it."""
    global _meter
    stop()
    _meter = _Meter()


def count_gpu(uuid: str) -> None:
    """Counts a GPU of this rank, too; the adapter calls it. uuid: "GPU-" and its number. Loads NVML. No effect before
    init().
    """
    if _meter is not None:
        _meter.add_gpu(uuid)


def stop() -> None:
    """Reports stay possible for as long as the counters cannot have wrapped; shutdown() calls it."""
    if _meter is not None:
        _meter.close()


def report(steps: int) -> dict[str, Any]:
    """joules since start(), joules_a_step if there were steps, and the sources; or `unavailable`, with the reasons."""
    if _meter is None or not _meter.sources:
        return {"unavailable": "; ".join(_meter.reasons) if _meter else "not started"}
    try:
        joules = _meter.read()
    except OSError as error:
        return {"unavailable": str(error)}
    found: dict[str, Any] = {"joules": joules, "sources": _meter.sources}
    return {**found, "joules_a_step": joules / steps} if steps else found
