"""Records and summaries without a job."""

import ctypes
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sirtaki.native import core
from sirtaki.timing import energy, records
from sirtaki.timing.text import summary_line

CAUSES = dict.fromkeys(summary_line.CAUSES, 0.0)


def report(**values: object) -> dict[str, object]:
    whole = {"steps": 100, "seconds": 10.0, "waiting": CAUSES, "exchange": 0.0, "hidden": None}
    return {**whole, "last": [], "without_core": 0.0, "energy": {}, **values}


def test_records_are_decoded() -> None:
    kind = core.RECORD_KINDS.index("all_arrived")
    data = records.LAYOUT.pack(-5, 7, 3, -1, 2 | records.PLANNED, kind, core.VERBS["broadcast"], 9)
    assert records.LAYOUT.size == 32
    assert records.decode(data) == [records.Record(-5, 7, 3, -1, 2, True, "all_arrived", core.VERBS["broadcast"], 9)]
    with pytest.raises(ValueError, match="33 bytes are not whole records of 32 bytes"):
        records.decode(data + b"x")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The counter of one processor, in microjoules; it wraps after 262 kJ."""
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    (folder / "energy_uj").write_text("262143000000\n")
    monkeypatch.setattr(energy, "_RAPL", tmp_path)
    monkeypatch.setattr(energy, "core", SimpleNamespace(local_rank=lambda: 0))
    monkeypatch.setattr(energy, "_meter", None)
    return folder / "energy_uj"


def test_the_energy_of_a_long_job(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_READINGS", 10**6)
    energy.start()
    meter = energy._meter
    assert meter is not None
    (package.parent / "new").write_text("671149\n")  # one joule more
    (package.parent / "new").rename(package)
    until = time.monotonic() + 60
    while meter.joules < 0.999 and time.monotonic() < until:
        time.sleep(0.001)
    assert meter.joules == pytest.approx(1.0), "the counter is read although nobody asks for a report"
    energy.stop()
    assert energy.report(10) == {"joules": meter.joules, "sources": ["RAPL"], "joules_a_step": meter.joules / 10}


def test_the_energy_of_a_gpu(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stand-in for NVML, which counts millijoules."""
    readings = iter((1000, 1000, 3500))

    def total(device: ctypes.c_void_p, value: Any) -> int:
        value._obj.value = next(readings)
        return 0

    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetHandleByUUID=lambda gpu, device: 0 if gpu == b"GPU-1" else 2,
        nvmlDeviceGetTotalEnergyConsumption=total,
    )
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: library)
    energy.start()
    energy.count_gpu("GPU-1")
    energy.count_gpu("GPU-1")
    energy.stop()
    assert energy.report(0) == {"joules": pytest.approx(2.5), "sources": ["RAPL", "NVML"]}
    package.unlink()
    energy.start()
    energy.count_gpu("GPU-7")
    reasons = energy.report(0)["unavailable"]
    assert "RAPL: No such file" in reasons and "NVML: NVML returned 2 for GPU-7" in reasons


def test_energy_that_may_be_wrong_stays_unavailable(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    energy.start()
    energy.stop()
    later = time.monotonic() + 600
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: later))
    for _ in range(2):
        assert "its counter may have wrapped" in energy.report(1)["unavailable"]


def test_the_line_of_a_job() -> None:
    last = [{"rank": 1, "steps": 39, "lateness": 1e-4}, {"rank": 3, "steps": 61, "lateness": 0.0042}]
    waiting = {**CAUSES, "late": 0.41, "agreement": 0.02, "copy": 0.11, "wire": 0.15}
    first = report(waiting=waiting, exchange=1.0, hidden=0.71, last=last)
    assert summary_line.line([first]) == (
        "100 steps: 93.1% computing; waited 6.9%: 4.1% rank 3 late, 0.2% agreement, 1.1% copy, 1.5% wire; "
        "hidden 71% of the exchange; rank 3 was last in 61% of the steps, by 4.2 ms"
    )


def test_ranks_are_averaged() -> None:
    line = summary_line.line([report(waiting={**CAUSES, "wire": 1.0}), report(without_core=4.0)])
    assert line == (
        "100 steps: 95.0% computing; waited 5.0%: 5.0% wire; "
        "starved of cores: 20% of the time threads were ready to run and had no core"
    )
    assert "3.5 J a step" in summary_line.line([report(energy={"joules_a_step": 3.5}), report()])
