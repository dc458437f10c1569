"""Jobs without MPI: the ranks send their addresses to the launcher, and get the table of all ranks from it."""

import secrets
from collections.abc import Sequence
from typing import Any

from sirtaki.job.launcher.workers import Worker, Workers
from sirtaki.job.protocol import channel

Waiting = tuple[Worker, dict[str, Any]]  # a worker whose rank waits in init(), and the request of that rank


def send(workers: Workers, generation: int, ranks: Sequence[Waiting]) -> None:
    """Sends the table to the ranks that wait for it. ranks: in the order of their numbers."""
    addresses = [(request["host"], request["port"]) for _, request in ranks]
    table = {"generation": generation, "addresses": addresses, "nonce": secrets.token_bytes(16).hex()}
    for rank, (worker, request) in enumerate(ranks):
        workers.send(worker, channel.TABLE, {**table, "rank": rank, "request": request["request"]})


class Tables:
    """Each time when all ranks of a job wait, they get a table."""

    def __init__(self) -> None:
        self._generation = 0
        self._waiting: dict[int, Waiting] = {}

    def on_request(self, workers: Workers, worker: Worker, request: dict[str, Any]) -> None:
        self._waiting[worker.rank] = worker, request
        if len(self._waiting) == workers.ranks:
            self._generation += 1
            send(workers, self._generation, [self._waiting[rank] for rank in sorted(self._waiting)])
            self._waiting.clear()
