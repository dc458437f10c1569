"""A few of the jobs of `./dev faults` in which a process goes wrong; what is looked at is in tests/faults."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import processes


# Killed, stopped, os._exit(0), an exception: on two to four ranks, by mpiexec and by sirtakirun, over both transports.
@pytest.mark.parametrize("number", [1, 2, 13, 19])
def test_a_process_goes_wrong(number):
    run = processes.Run.of_seed(1, number)
    outcome = processes.execute(run)
    assert not outcome.complaint, f"{run}: {outcome.complaint}"
