"""The energy that this host's processors (RAPL) and this rank's GPU (NVML) have used, where the system lets us read it.

RAPL counts a whole host, so only its first rank reports that.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sirtaki.native import core

_RAPL = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"
_MOST_WATTS = 500  # of one package

_Counter = Callable[[], float]  # joules since any moment


class _Meter:
    """gpu: its number, None for none. reasons: why a source is missing."""

    def __init__(self, gpu: int | None) -> None:
        self.reasons: list[str] = []
        self.sources: list[str] = []
        self._counters: list[_Counter] = []
        if core.local_rank() == 0:
            self._open("RAPL", _rapl_counters)
        else:
            self.reasons.append("RAPL: the first rank of this host reports it")
        if gpu is not None:
            self._open("NVML", lambda: [_nvml_counter(gpu)])
        self._last = [counter() for counter in self._counters]
        self.joules = 0.0

    def _open(self, source: str, make: Callable[[], list[_Counter]]) -> None:
        try:
            self._counters += make()
            self.sources.append(source)
        except OSError as error:
            self.reasons.append(f"{source}: {error.strerror or error}")

    def read(self) -> float:
        """Joules since the meter was made."""
        now = [counter() for counter in self._counters]
        self.joules += sum(max(0.0, new - old) for new, old in zip(now, self._last, strict=True))
        self._last = now
        return self.joules


class _RaplCounter:
    """One package. Its counter wraps at a value that the kernel names."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._last = self._raw()
        self._read_at = time.monotonic()
        self._total = 0

    def _raw(self) -> int:
        return int(self._file.read_text())

    def __call__(self) -> float:
        now, then = self._raw(), self._read_at
        self._read_at = time.monotonic()
        if (self._read_at - then) * _MOST_WATTS > self._range * 1e-6:
            raise OSError(None, f"RAPL was not read for {self._read_at - then:.0f} s; its counter may have wrapped")
        self._total += (now - self._last) % (self._range + 1)
        self._last = now
        return self._total * 1e-6


def _rapl_counters() -> list[_Counter]:
    """The packages, without their parts (which have a second colon). OSError if none can be read."""
    folders = sorted(_RAPL.glob("intel-rapl:*"))
    if not folders:
        raise OSError(None, f"{_RAPL} has no intel-rapl, as in most virtual machines")
    return [_RaplCounter(folder) for folder in folders if folder.name.count(":") == 1]


def _nvml_counter(gpu: int) -> _Counter:
    library = ctypes.CDLL(_NVML)  # OSError with the loader's message
    _check(library.nvmlInit_v2(), "nvmlInit")
    device = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(device)), f"GPU {gpu}")
    millijoules = ctypes.c_ulonglong()

    def read() -> float:
        code = library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        _check(code, f"the energy of GPU {gpu}")
        return millijoules.value * 1e-3

    read()
    return read


def _check(code: int, what: str) -> None:
    if code:
        raise OSError(None, f"NVML returned {code} for {what}")


_meter: _Meter | None = None


def start(gpu: int | None = None) -> None:
    """Counts from now on; init() calls it. gpu: its number, to count it too, which loads NVML."""
    global _meter
    _meter = _Meter(gpu)


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
