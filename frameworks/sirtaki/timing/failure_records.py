"""The last events of each rank of a failed job, as files: as JSON, and as torch's flight-recorder analyser reads them.

`python -m torch.distributed.flight_recorder.fr_trace DIR --prefix torch_rank_` then compares the ranks.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sirtaki import settings
from sirtaki.native import core
from sirtaki.timing import records
from sirtaki.timing.records import Record

COUNT = 2000
_log = logging.getLogger("sirtaki")
_TORCH_VERSION = "2.10"  # of the dump's format
_TORCH_VERBS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
}


def keep(cause: Mapping[str, Any]) -> None:
    """Writes this rank's files into the folder that SIRTAKI_FAILURE_RECORDS names; nothing without it. A folder that
    cannot be written is no reason to hide the failure itself.
    """
    folder = settings.failure_folder()
    if not folder:
        return
    found = records.latest(COUNT)
    rank, sets = core.rank(), core.process_sets()
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        Path(folder, f"records_of_rank_{rank}.json").write_text(as_json(found, rank, cause))
        Path(folder, f"torch_rank_{rank}").write_bytes(pickle.dumps(for_torch(found, sets, rank), protocol=4))
    except OSError as error:
        _log.warning("no failure records of rank %d in %s: %s", rank, folder, error.strerror or error)


def as_json(found: Sequence[Record], rank: int, cause: Mapping[str, Any]) -> str:
    """verbs and kinds by name; times in nanoseconds of CLOCK_MONOTONIC. now: that clock and seconds since 1970."""
    verbs = {number: name for name, number in core.VERBS.items()}
    rows = [{**record._asdict(), "verb": verbs[record.verb]} for record in found]
    clocks = {"monotonic_ns": time.monotonic_ns(), "wall_s": time.time()}
    report = {"rank": rank, "size": core.size(), "cause": dict(cause), "now": clocks, "records": rows}
    return json.dumps(report, indent=1)


def for_torch(found: Sequence[Record], sets: Mapping[int, Sequence[int]], rank: int) -> dict[str, Any]:
    """One entry for each batch, in the order in which they began. A batch has no single shape, so its bytes stand for
    it: ranks that differ in them are shown as a mismatch.
    """
    verbs = {number: name for name, number in core.VERBS.items()}
    to_wall = time.time_ns() - time.monotonic_ns()
    entries: dict[tuple[int, bool, int], dict[str, Any]] = {}
    for record in found:
        key = (record.group, record.planned, record.number)
        if record.kind == "batch_ready" or (record.kind == "batch_begin" and record.planned):
            entries[key] = _entry(record, len(entries), verbs[record.verb], record.time + to_wall)
        if key in entries and record.kind in ("batch_begin", "batch_end"):
            entries[key]["state"] = "started" if record.kind == "batch_begin" else "completed"
            name = "time_discovered_started_ns" if record.kind == "batch_begin" else "time_discovered_completed_ns"
            entries[key][name] = record.time + to_wall
    groups = {_group_name(number, planned): (number, ranks) for number, ranks in sets.items() for planned in (0, 1)}
    config = {name: {"desc": name, "ranks": str(list(ranks))} for name, (_, ranks) in groups.items()}
    return {
        "version": _TORCH_VERSION,
        "pg_config": config,
        "pg_status": {},
        "entries": list(entries.values()),
        "rank": rank,
    }


def _group_name(group: int, planned: bool | int) -> str:
    """Batches of locked plans have numbers of their own, so they are a group of their own."""
    return f"process set {group}{', locked plan' if planned else ''}"


def _entry(record: Record, number: int, verb: str, created: int) -> dict[str, Any]:
    group = _group_name(record.group, record.planned)
    sizes = [[record.bytes]]
    return {
        "record_id": number,
        "pg_id": record.group,
        "process_group": (group, group),
        "collective_seq_id": record.number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"gloo:{_TORCH_VERBS.get(verb, verb)}",  # the analyser knows torch's backends only
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": ["Byte"],
        "output_dtypes": ["Byte"],
        "state": "scheduled",
        "time_created_ns": created,
        "is_p2p": False,
        "retired": False,
        "timeout_ms": 0,
        "frames": [],
    }
