"""`--metrics-port` and `--metrics-file`: the ranks' numbers for Prometheus. Ranks are asked when somebody looks."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sirtaki.job.launcher import status
from sirtaki.launch import running_jobs
from sirtaki.timing.rates import CAUSES

_ADDRESS = "127.0.0.1"
_FIRST_SECONDS, _FILE_SECONDS = 1.0, 15.0  # until the file is written, and between two times
_PREFIX = "sirtaki"


class JobCollector:
    """What prometheus_client asks for values. job: the name of the launcher's own socket for status requests."""

    def __init__(self, job: str) -> None:
        self._job = job

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        def counter(name: str, what: str, *labels: str) -> Any:
            return CounterMetricFamily(f"{_PREFIX}_{name}", what, labels=["rank", *labels])

        steps = counter("steps", "Training steps that have ended")
        length = counter("steps_seconds", "Time of these steps")
        sent = counter("exchanged_bytes", "Bytes of this rank's tensors in collectives")
        waited = counter("wait_seconds", "Time of these steps in which the program waited, by cause", "cause")
        last = counter("came_last", "Steps for which this rank was the last one, as rank 0 saw it")
        ranks = _numbers(self._job)
        for rank, numbers in ((str(rank), numbers) for rank, numbers in enumerate(ranks) if numbers is not None):
            steps.add_metric([rank], numbers["steps"])
            length.add_metric([rank], numbers["length"] / 1e9)
            sent.add_metric([rank], numbers["bytes"])
            for cause in CAUSES:
                waited.add_metric([rank, cause], numbers[cause] / 1e9)
        for rank, (count, _) in (ranks[0]["last"] if ranks and ranks[0] else {}).items():
            last.add_metric([rank], count)
        yield from (steps, length, sent, waited, last)


def why_no_file(path: str) -> str:
    """Why no file with this name can be written; "" if it can."""
    folder = os.path.dirname(os.path.abspath(path))
    if not path or os.path.isdir(path):
        return "this is a folder" if path else "the name is empty"
    return "" if os.access(folder, os.W_OK) else f"cannot write into the folder {folder}"


def _numbers(job: str) -> list[Any]:
    text = running_jobs.ask(job, status.NUMBERS)
    return json.loads(text)["ranks"] if text else []


@contextlib.contextmanager
def serving(job: str, port: int | None, file: str | None) -> Iterator[Callable[[], None]]:
    """Yields what begins to serve http://127.0.0.1:port/metrics and to write the file: threads, until the block ends.

    ValueError, here or there, if the package prometheus_client is not installed, or the port or file cannot be used.
    """
    if port is None and file is None:
        yield lambda: None
        return
    try:
        import prometheus_client as prometheus
    except ImportError as error:
        raise ValueError(
            f"metrics need the package prometheus_client (pip install 'sirtaki[timeline]'): {error}"
        ) from None
    if file is not None and why_no_file(file):
        raise ValueError(f"--metrics-file {file!r}: {why_no_file(file)}")
    registry = prometheus.CollectorRegistry(auto_describe=False)
    ends = threading.Event()
    registry.register(JobCollector(job))
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            if port is not None:
                try:
                    server, _ = prometheus.start_http_server(port, addr=_ADDRESS, registry=registry)
                except OSError as error:
                    raise ValueError(f"--metrics-port {port}: {error.strerror}") from None
                stack.callback(server.server_close)
                stack.callback(server.shutdown)
            if file is not None:
                threading.Thread(target=_write, args=(file, registry, ends), daemon=True).start()
            stack.callback(ends.set)

        yield begin


def _write(path: str, registry: Any, ends: threading.Event) -> None:
    """Until a rank has numbers, tries each second. A failure is shown once, and tried again."""
    import prometheus_client as prometheus

    shown = False
    wait = _FIRST_SECONDS
    while not ends.wait(wait):
        try:
            prometheus.write_to_textfile(path, registry)
            wait = _FILE_SECONDS if any(family.samples for family in registry.collect()) else _FIRST_SECONDS
        except Exception as error:  # the job goes on without this file
            if not shown:
                print(f"sirtakirun: --metrics-file {path}: {error}", file=sys.stderr, flush=True)
            shown = True
