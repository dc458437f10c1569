"""The rendezvous through `sirtakirun`, which receives the addresses of all ranks, and sends them the table."""

from __future__ import annotations

import contextlib
import os
import sys

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.job.rank import ending, supervisor_link
from sirtaki.native import core
from sirtaki.rendezvous.table import Table, listen

_ADDRESS = "SIRTAKI_WORKER_ADDRESS"  # by which other ranks reach this one; the supervisor sets it

_generation = 0  # of the newest table
_rank: int | None = None  # in it


def has_started_this() -> bool:
    return bool(os.environ.get(_ADDRESS))


def is_there() -> bool:
    return has_started_this() and supervisor_link.is_there()


def newest_rank() -> int | None:
    """This process's rank in the newest table, also after shutdown(). None if it has had no table."""
    return _rank


def newest_generation() -> int:
    """Of the newest table; 0 if there was none."""
    return _generation


def join() -> Table:
    """Returns when the launcher has sent the table: at once after all ranks have called it. The launcher has the limit.

    SirtakiInternalError if the job has failed meanwhile. SystemExit with code 0 if an elastic job does not need this
    process any more.
    """
    global _generation, _rank
    own = listen(os.environ[_ADDRESS])
    host, port = own.getsockname()[:2]
    core.take_notice()  # an older notice is about ranks of an older table
    lost = (ending.last_failure() or {}).get("rank", -1)
    request = {"host": host, "port": port, "progress": _progress(), "generation": _generation, "lost": lost}
    answer = supervisor_link.ask_table(request)
    if "leave" in answer:
        supervisor_link.leave()
        with contextlib.suppress(OSError, ValueError):
            print(f"sirtaki: this process leaves the job: {answer['leave']}", file=sys.stderr, flush=True)
        raise SystemExit(0)
    if "error" in answer:
        raise SirtakiInternalError(answer["error"])
    addresses = [(str(name), int(number)) for name, number in answer["addresses"]]
    key, _generation, _rank = bytes.fromhex(answer["key"]), int(answer["generation"]), int(answer["rank"])
    return Table(_rank, addresses, key, own if len(addresses) > 1 else None, _generation)


def _progress() -> int:
    """The number of commits that this process has. A program that never imported the module has made none."""
    return int(getattr(sys.modules.get("sirtaki.elastic"), "progress", 0))
