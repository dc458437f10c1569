"""Finds the parameters that only some ranks have, after a collective found that the ranks' lists differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.exchange import allgather_bytes
from sirtaki.native import core

_SHOWN = 5
_ADVICE = (
    "Every rank must reduce the gradients of the same parameters; look for a layer that not all ranks have, or that "
    "is frozen (requires_grad, trainable) on some only"
)


@contextmanager
def missing_parameters_in_error(names: Callable[[], Sequence[str]], process_set: int) -> Iterator[None]:
    """Wrap it around a collective with one entry for each parameter. If the ranks have different numbers of parameters,
    the SirtakiInternalError then names the parameters that some ranks lack. names: of this rank's parameters.
    """
    try:
        yield
    except SirtakiInternalError as error:
        text = "" if core.failure() else _exchanged_difference(names(), process_set)
        if not text:
            raise
        raise SirtakiInternalError(text) from error


def _exchanged_difference(names: Sequence[str], process_set: int) -> str:
    """The same error is raised on all ranks, so all ranks call this. "" if a rank has left since."""
    payload = json.dumps([core.rank(), list(names)]).encode()
    try:
        parts = allgather_bytes(payload, "allgather.names of parameters", process_set)
    except SirtakiInternalError:
        return ""
    return difference(dict(json.loads(part) for part in parts))


def difference(by_rank: Mapping[int, Sequence[str]]) -> str:
    """The difference in words, "" if there is none. by_rank: parameter names; a name may occur several times."""
    counts = {rank: len(names) for rank, names in by_rank.items()}
    numbered = {rank: set(_numbered(names)) for rank, names in by_rank.items()}
    everything = dict.fromkeys(entry for names in by_rank.values() for entry in _numbered(names))
    by_owners: dict[tuple[int, ...], list[str]] = {}
    for entry in everything:
        owners = tuple(rank for rank in by_rank if entry in numbered[rank])
        if len(owners) < len(by_rank):
            by_owners.setdefault(owners, []).append(entry[0])
    if not by_owners:
        return ""
    held = "; ".join(
        f"{_ranks(r for r in counts if counts[r] == count)}: {count}" for count in dict.fromkeys(counts.values())
    )
    lacks = [_lack(owners, [r for r in by_rank if r not in owners], names) for owners, names in by_owners.items()]
    return f"The ranks do not hold the same parameters to be reduced ({held}): {_listed(lacks, '; ')}. {_ADVICE}"


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append((name, seen[name]))
    return result


def _lack(owners: Sequence[int], others: Sequence[int], names: Sequence[str]) -> str:
    if len(owners) <= len(others):
        return f"only {_ranks(owners)} {'has' if len(owners) == 1 else 'have'} {_listed(names)}"
    return f"{_ranks(others)} {'lacks' if len(others) == 1 else 'lack'} {_listed(names)}"


def _ranks(ranks: Iterable[int]) -> str:
    listed = [str(rank) for rank in ranks]
    return f"rank{'s' if len(listed) > 1 else ''} {_listed(listed)}"


def _listed(entries: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return separator.join(entries[:_SHOWN]) + more
