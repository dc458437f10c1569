"""Programs that train by steps of one allreduce each, and what a job of them says about its time."""

import json
from typing import Any

STEPS = """
import ctypes, json, threading
from sirtaki.timing.summary import step_report
def steps(count, elements, before):
    data = (ctypes.c_float * elements)()
    address = ctypes.addressof(data)
    tensor = (address, address, core.DTYPES["float32"], (elements,), -1)
    arrivals = []
    for _ in range(count):
        before()
        arrivals.append(time.monotonic_ns())
        core.submit(core.VERBS["allreduce"], "gradient", [tensor], site="program.py:1", awaited=True).wait()
        core.end_step()
    return arrivals
def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
"""


def closing_line(done: Any) -> str:
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.decode().splitlines() if "computing" in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


def largest_cause(report: dict[str, Any]) -> str:
    """Of the waiting. On a busy machine the ranks that wait get no core, which counts as the host: that is left out."""
    parts = report["waiting"] | {"host": report["waiting"]["host"] - report["without_core"]}
    return max(parts, key=lambda cause: parts[cause])


def outputs(done: Any) -> list[Any]:
    """What each rank printed: its rank, then JSON."""
    lines = sorted(line.split(" ", 1) for line in done.stdout.decode().splitlines())
    return [json.loads(text) for _, text in lines]
