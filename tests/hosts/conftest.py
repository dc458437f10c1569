"""Three simulated hosts for each test: namespaces where they are permitted, otherwise stand-ins for ssh."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / room) for room in ("python", "parallel")]

from namespaces import Namespaces
from simulated import Hosts
from stand_ins import StandIns

NAMES = ("n1", "n2", "n3")


@pytest.fixture(scope="session")
def _stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    made = StandIns(tmp_path_factory.mktemp("stand-ins"), NAMES)
    yield made
    made.close()


@pytest.fixture(scope="session")
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces | str]:
    """Or why there are none."""
    try:
        made = Namespaces(tmp_path_factory.mktemp("namespaces"), NAMES)
    except OSError as error:
        yield str(error)
        return
    yield made
    made.close()


@pytest.fixture
def networks(_namespaces: Namespaces | str, tmp_path: Path) -> Iterator[Hosts]:
    """Hosts that have networks of their own."""
    if isinstance(_namespaces, str):
        pytest.skip(_namespaces)
    yield from _checked(Hosts(_namespaces, tmp_path))


@pytest.fixture
def either(_stand_ins: StandIns, _namespaces: Namespaces | str, tmp_path: Path) -> Iterator[Hosts]:
    """For what is slow and the same on both."""
    yield from _checked(Hosts(_stand_ins if isinstance(_namespaces, str) else _namespaces, tmp_path))


# The better kind that is permitted; by SIRTAKI_TEST_HOSTS_KINDS=both each test on both, which takes twice as long.
_KINDS = ["stand_ins", "namespaces"] if os.environ.get("SIRTAKI_TEST_HOSTS_KINDS") == "both" else ["either"]


@pytest.fixture(params=_KINDS)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    namespaces = request.getfixturevalue("_namespaces")
    stands_in = request.param == "stand_ins" or (request.param == "either" and isinstance(namespaces, str))
    machine = request.getfixturevalue("_stand_ins") if stands_in else namespaces
    if isinstance(machine, str):
        pytest.skip(machine)
    yield from _checked(Hosts(machine, tmp_path))


def _checked(hosts: Hosts) -> Iterator[Hosts]:
    """Whatever a test does, no process of its job and no shared memory is left on any host."""
    yield hosts
    hosts.assert_nothing_left()
    left = hosts.machine.remove_segments()
    assert hosts.dies_inside_mpi_init or left == []
