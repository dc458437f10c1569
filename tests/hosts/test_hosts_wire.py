"""A network of a limited rate: the closing line says that the job waits for the wire."""

import re

import pytest
from simulated import START, Hosts
from timed_steps import STEPS, closing_line, largest_cause, outputs

RATE = "200mbit"
BYTES = 1 << 20  # of a gradient: 40 ms at that rate
OVER_TCP = {"UCX_TLS": "tcp,self"}  # MPICH's UCX would use the memory that the simulated hosts share


def test_a_slow_network_is_the_wire(networks: Hosts) -> None:
    body = f"steps(6, {BYTES // 4}, lambda: None)\nprint(json.dumps(step_report()), flush=True)\n"
    reasons = [networks.machine.limit(name, RATE) for name in ("n1", "n2")]
    if any(reasons):
        pytest.skip(f"no limits on links here: {reasons}")
    try:
        done = networks.run(*networks.flags("n1:1,n2:1", 2), *networks.program(body, START + STEPS), **OVER_TCP)
    finally:
        for name in ("n1", "n2"):
            networks.machine.limit(name, "")
    for report in outputs(done):
        assert report["seconds"] > 0.02 * report["steps"], "the data did not pass the limited link"
        assert largest_cause(report) == "wire", report
        assert report["waiting"]["wire"] > 0.5 * report["seconds"], report
    assert re.search(r"waited [\d.]+%:.* [\d.]+% wire", closing_line(done))
