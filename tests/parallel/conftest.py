"""Runs functions marked `@ranks(...)` on that many processes; see ranks.py."""

from __future__ import annotations

import faulthandler
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import WORKER, Job

_IN_WORKER = WORKER in os.environ
_COUNT = int(os.environ.get(f"{WORKER}_COUNT", "0"))
_STACKS_AFTER = 75.0  # seconds that a test may take before each rank prints where it is
_jobs: dict[tuple[str, int], Job] = {}
_SETTINGS = {  # of the jobs of a framework
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "keras/torch": {"KERAS_BACKEND": "torch"},
    "keras2": {"TF_USE_LEGACY_KERAS": "1"},
}
_KERAS_BACKENDS = ("tensorflow", "torch")  # each in its own processes: Keras keeps to the one it was imported with


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is not None:
        counts = [count for count in marker.args if not _IN_WORKER or count == _COUNT]
        cases = [pytest.param(count, id=f"{count}ranks", marks=_marks(metafunc, count)) for count in counts]
        metafunc.parametrize("rank_count", cases, indirect=True)
        if metafunc.definition.path.name.startswith("test_keras_"):
            wanted = marker.kwargs.get("backends", _KERAS_BACKENDS)
            backends = [os.environ["KERAS_BACKEND"]] if _IN_WORKER else wanted
            metafunc.parametrize("keras_backend", backends, indirect=True)


def _marks(metafunc: pytest.Metafunc, count: int) -> list[pytest.MarkDecorator]:
    """TensorFlow and Keras start slowly. What differs on a third rank lies in the core, and torch's tests show that.
    What differs on a fourth lies in the planes, which the core's tests run on up to eight ranks.
    """
    marker = metafunc.definition.get_closest_marker("ranks")
    slow = metafunc.definition.path.name.startswith(("test_keras", "test_tensorflow"))
    return [pytest.mark.long] if count > max(2 if slow else 3, min(marker.args)) else []


@pytest.fixture(autouse=True)
def keras_backend(request: pytest.FixtureRequest) -> str:
    """What Keras runs on in this test, "" in tests without Keras."""
    return getattr(request, "param", "")


@pytest.fixture(autouse=True)
def rank_count(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of ranks that this test runs on, 0 for a test of the outer pytest."""
    count = getattr(request, "param", 0)
    if not (_IN_WORKER and count):
        yield count
        return
    import sirtaki
    from sirtaki.native import core

    sirtaki.init()
    if os.environ.get("TEST_DEVICE") == "cuda":
        from gpu import own_gpu

        own_gpu()
    yield count
    if sirtaki.is_initialized():
        core.submit(core.VERBS["barrier"], "", []).wait()


def pytest_collection_finish(session: pytest.Session) -> None:
    if _IN_WORKER:
        return
    tests: dict[tuple[str, int], list[str]] = {}
    for item in session.items:
        if _count_of(item):
            tests.setdefault(_job_of(item), []).append(item.nodeid)
    for key, names in tests.items():
        _jobs[key] = Job(key[1], names, session.config.rootpath, _SETTINGS.get(key[0]))


def _job_of(item: pytest.Item) -> tuple[str, int]:
    """(framework, number of ranks): no job imports two frameworks, unless a test of its own wants to. Keras 3 on torch
    is "keras/torch". On TensorFlow it shares TensorFlow's job.
    """
    name = item.path.name
    known = ("tensorflow", "keras2", "keras")
    framework = next((other for other in known if name.startswith(f"test_{other}")), "torch")
    if framework == "keras":
        backend = item.callspec.params["keras_backend"]
        framework = backend if backend == "tensorflow" else f"keras/{backend}"
    return framework, _count_of(item)


def _count_of(item: pytest.Item) -> int:
    if item.get_closest_marker("ranks") is None:
        return 0
    return item.callspec.params["rank_count"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if _IN_WORKER or not _count_of(pyfuncitem):
        return None
    verdict = _jobs[_job_of(pyfuncitem)].verdict(pyfuncitem.nodeid)
    if verdict:
        pytest.fail(verdict, pytrace=False)
    return True


# In a rank's pytest: write down each test's beginning and end; leave the job at the first failure.


def _note(entry: dict[str, str]) -> None:
    import sirtaki

    rank = sirtaki.rank() if sirtaki.is_initialized() else _last_rank
    with Path(os.environ[WORKER], f"rank{rank}").open("a") as file:
        file.write(json.dumps(entry) + "\n")


_last_rank = -1
_began = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if _IN_WORKER:
        import sirtaki

        global _last_rank, _began
        _last_rank, _began = sirtaki.rank(), time.monotonic()
        _note({"test": item.nodeid, "begins": "1"})
        faulthandler.dump_traceback_later(_STACKS_AFTER)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not _IN_WORKER:
        return
    if report.failed:
        _note({"test": report.nodeid, "failure": report.longreprtext})
        time.sleep(1.5)  # the other ranks may be about to write the same
        os._exit(1)
    if report.when == "teardown":
        faulthandler.cancel_dump_traceback_later()
        _note({"test": report.nodeid, "failure": "", "seconds": f"{time.monotonic() - _began:.1f}"})
