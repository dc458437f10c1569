"""A few of the jobs of `./dev faults` in which a process goes wrong; what is looked at is in tests/faults."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import processes


# On two to four ranks, by mpiexec and by sirtakirun, over shared memory and MPI.
@pytest.mark.parametrize("number", [1, 8, 3, 11])
def test_a_process_goes_wrong(number):
    run = processes.Run.of_seed(1, number)
    outcome = processes.execute(run)
    assert not outcome.complaint, f"{run}: {outcome.complaint}"
