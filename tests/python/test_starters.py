"""The ways in which ranks are started: what each sets in the environment, and that each is in the one list."""

import socket
import subprocess
import sys

import pytest
from launching import environment

from sirtaki import starters
from sirtaki.starters import announced_rank, announced_size


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


@pytest.mark.parametrize(
    ("environment", "expected"),
    (
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, None),  # a batch script
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "OMPI_COMM_WORLD_RANK": "2"}, 2),
    ),
)
def test_announced_rank(environment, expected):
    assert announced_rank(environment) == expected


def test_each_starter_is_in_the_list():
    """A new one is known to library and launcher as soon as it is there."""

    def classes(parent):
        return {parent, *(below for child in parent.__subclasses__() for below in classes(child))}

    assert {type(starter) for starter in starters.STARTERS} == classes(starters.Starter) - {starters.Starter}
    assert len({starter.name for starter in starters.STARTERS}) == len(starters.STARTERS)


@pytest.mark.parametrize(
    ("library", "names"),
    (
        ("/x/libmpi.so.12", ["hydra"]),
        ("/x/libmpich.so.12.1.2", ["hydra"]),
        ("/x/libmpi.so.40.30.4", ["openmpi", "prrte"]),
        ("/x/libmpi_abi.so.1", ["openmpi", "prrte", "hydra"]),
    ),
)
def test_starters_of_a_library(library, names):
    assert [starter.name for starter in starters.of_library(library)] == names


def test_the_library_needs_nothing_of_the_launcher():
    """And the starters need nothing of either, but what looks at processes."""
    code = (
        "import sys, sirtaki.starters\n"
        "print(sorted(m for m in sys.modules if m.startswith('sirtaki.') and '.starters' not in m))\n"
        "import sirtaki.runtime\n"
        "print([m for m in sys.modules if m.startswith('sirtaki.launch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "['sirtaki.host', 'sirtaki.host.processes']\n[]\n", done


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "version", "expected"),
    (
        (OPEN_MPI, "MPICH Version: 5.0.2 configure: --with-ch4", "OMPI_COMM_WORLD_SIZE"),
        (OPEN_MPI, "MPICH Version: 5.0.2 configure: --with-pmix=/usr", ""),
        (OPEN_MPI, "Open MPI v4.1.4", ""),
        ({**OPEN_MPI, "PMI_RANK": "0", "PMI_SIZE": "3"}, "MPICH Version: 5.0.2", ""),  # Hydra inside a rank
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, "MPICH Version: 5.0.2", ""),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "Open MPI v4.1.4", ""),  # starts alone, which init() notices afterwards
    ),
)
def test_a_starter_of_another_mpi(environment, version, expected):
    assert starters.variable_of_other_mpi(lambda: version, environment) == expected


def test_descriptors_that_do_not_lead_to_a_starter():
    """A closed descriptor, a file, a socket of this process's own; a socket of its parent's making is one."""
    code = """
import os, socket, sys
from sirtaki.starters import inherited_socket
inherited, closed = map(int, sys.argv[1:])
own, _ = socket.socketpair()
network = socket.socket()
with open(os.devnull) as file:
    print([inherited_socket.peer(number) for number in (closed, file.fileno(), own.fileno(), network.fileno())])
print(inherited_socket.peer(inherited) == os.getppid(), inherited_socket.described(closed))
"""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", code, str(theirs.fileno()), "250"]
        done = subprocess.run(
            words, env=environment(), pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "[None, None, None, None]\nTrue is closed\n", done
