"""What launchers' variables announce."""

import pytest

from sirtaki.launchers import announced_size


@pytest.mark.parametrize(
    ("environment", "expected"),
    (
        ({}, ("", 0)),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, ("PMI_SIZE", 4)),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ("OMPI_COMM_WORLD_SIZE", 2)),
        ({"SIRTAKI_SIZE": "3"}, ("SIRTAKI_SIZE", 3)),
        ({"PMIX_RANK": "2"}, ("PMIX_RANK", 3)),
        ({"PMIX_RANK": "0"}, ("", 0)),
        ({"PMI_SIZE": "many"}, ("", 0)),
        ({"SLURM_NTASKS": "8"}, ("", 0)),  # an allocation, no step
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, ("", 0)),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, ("SLURM_NTASKS", 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, ("SLURM_STEP_NUM_TASKS", 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, ("SLURM_NTASKS", 8)),
    ),
)
def test_announced_size(environment, expected):
    assert announced_size(environment) == expected
