"""Tests that run on several ranks.

A function marked `@ranks(2, 3)` runs on 2 and on 3 processes; those of Keras 3 on each of its backends, or on those of
`@ranks(2, backends=["torch"])`. All tests of one size and framework share one job: each
rank runs pytest itself on the same list and writes what happened to a file. The outer pytest starts the job when the
first of its tests is due, and reports each test as failed if any rank failed. A rank that fails leaves, which ends the
job; the tests that were still to come then get a new job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jobs
import pytest

ranks = pytest.mark.ranks

WORKER = "SIRTAKI_TEST_WORKER"  # where a rank's pytest finds its list and leaves its results
_QUIET_LIMIT = 150.0  # seconds without any test beginning or ending
_WORKER_SETTINGS = {
    "SIRTAKI_DYNAMIC_PROCESS_SETS": "1",
    "SIRTAKI_STALL_CHECK_TIME_SECONDS": "15",
    "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "100",
}
_PROGRAM = "import ranks; ranks.run_worker()"


def run_worker() -> None:
    """One rank of a job: pytest on the list of tests, then an orderly end."""
    folder = Path(os.environ[WORKER])
    tests = json.loads((folder / "tests").read_text())
    arguments = ["-p", "no:cacheprovider", "-q", "--rootdir", os.environ[f"{WORKER}_ROOT"], *tests]
    sys.exit(int(pytest.main(arguments)))


def run_tests(count: int, tests: list[str], root: Path, settings: dict[str, str]) -> tuple[int | None, str]:
    """One job that runs pytest with these arguments on each rank, with a limit of 5 minutes: (exit code, output)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = _start(count, tests, root, folder, settings)
        try:
            code = job.wait(300)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            jobs.kill(job)
        return code, (folder / "output").read_text(errors="replace")


def _start(count: int, tests: list[str], root: Path, folder: Path, settings: dict[str, str]) -> subprocess.Popen:
    (folder / "tests").write_text(json.dumps(tests))
    here = str(Path(__file__).parent)
    extra = {
        **_WORKER_SETTINGS,
        WORKER: str(folder),
        f"{WORKER}_ROOT": str(root),
        f"{WORKER}_COUNT": str(count),
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        **settings,
    }
    if operations := os.environ.get("TEST_GPU_OPERATIONS"):  # jobs.py lets no setting through
        extra["SIRTAKI_GPU_OPERATIONS"] = operations
    return jobs.start(count, [sys.executable, "-c", _PROGRAM], folder / "output", extra)


class Job:
    """The results of one size: {test: {rank: failure or ""}}, filled in by as many jobs as it takes."""

    def __init__(self, count: int, tests: list[str], root: Path, settings: dict[str, str] | None = None) -> None:
        """settings: of the job's environment, beside those that every job has."""
        self._settings = settings or {}
        self._count = count
        self._todo = tests
        self._root = root
        self._verdicts: dict[str, str] = {}

    def verdict(self, test: str) -> str:
        """ "" if the test passed on every rank, otherwise what went wrong."""
        while test not in self._verdicts:
            self._run()
        return self._verdicts[test]

    def _run(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = _start(self._count, self._todo, self._root, folder, self._settings)
            quiet = self._watch(job, folder)
            jobs.kill(job)
            output = (folder / "output").read_text(errors="replace")
            if os.environ.get("SIRTAKI_TEST_TIMES"):
                print((folder / "rank0").read_text(), file=sys.stderr)
            self._judge(_read(folder, self._count), quiet, output)

    def _watch(self, job: subprocess.Popen, folder: Path) -> bool:
        """Waits for the job; True if it made no progress for too long."""
        seen, since = -1, time.monotonic()
        while job.poll() is None:
            size = sum(path.stat().st_size for path in folder.glob("rank*"))
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > _QUIET_LIMIT:
                return True
            time.sleep(0.1)
        return False

    def _judge(self, found: list[dict[str, str]], quiet: bool, output: str) -> None:
        for test in list(self._todo):
            failures = [f"rank {rank}:\n{part[test]}" for rank, part in enumerate(found) if part.get(test)]
            missing = [rank for rank, part in enumerate(found) if test not in part]
            if missing and not failures:
                why = "made no progress" if quiet else "ended"
                failures = [f"ranks {missing} {why} before the test was over; the job's output:\n{output[-6000:]}"]
            self._verdicts[test] = "\n".join(failures)
            self._todo.remove(test)
            if (missing or failures) and any(found):
                return  # the rest was not run


def _read(folder: Path, count: int) -> list[dict[str, str]]:
    """For each rank, what it wrote of the tests that it finished."""
    found: list[dict[str, str]] = [{} for _ in range(count)]
    for rank in range(count):
        path = folder / f"rank{rank}"
        for line in path.read_text().splitlines() if path.exists() else []:
            entry = json.loads(line)
            if "failure" in entry:
                found[rank][entry["test"]] = found[rank].get(entry["test"]) or entry["failure"]
    return found
