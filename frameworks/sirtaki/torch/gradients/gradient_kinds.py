"""The ranks agree on which parameters they reduce, in which order, and on what kind their gradients are."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.checks.parameter_lists import difference, missing_parameters_in_error
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.exchange import allgather_bytes
from sirtaki.native import core
from sirtaki.reduce_ops import Sum
from sirtaki.torch.gradients.slots import DENSE, SPARSE, Slot
from sirtaki.torch.ops.tensors import describe

_ALLREDUCE = core.VERBS["allreduce"]
_WORD = 3  # bytes of a digest; squares of such numbers, added up over all ranks, stay exact in 64 bits
_WORDS = 4


@dataclass
class Ballot:
    """subject: what the vote is about. asked: the parameters that it asks for, and of those `wanted` says which
    gradients count. known: the other parameters on which the ranks have agreed before. why: what has led this rank to
    the vote, for the message if others do not come.
    """

    subject: str
    asked: list[Slot]
    known: Sequence[Slot]
    wanted: Callable[[Slot], bool]
    why: str = ""


def agree(ballot: Ballot, name: str, group: int) -> list[tuple[Slot, int]]:
    """Those of `asked` of which some rank has a gradient that is wanted, in one order for all ranks, and the kind.

    Sorts `asked` as the first rank has it.
    SirtakiInternalError on every rank, with names, if the ranks do not hold the same parameters.
    """
    counts = _count(ballot, name, group)
    if counts is None:
        _sort_alike(ballot, group)
        counts = _count(ballot, f"{name}, sorted", group)
        if counts is None:
            raise SirtakiInternalError(f"the ranks do not come to the same order of parameters ({name})")
    return [
        (slot, DENSE if dense else SPARSE)
        for slot, dense, sparse in zip(ballot.asked, *counts, strict=True)
        if dense or sparse
    ]


def met_another_request(error: SirtakiInternalError) -> bool:
    """Whether a vote failed because other ranks have sent something else under its name."""
    return "The ranks disagree on" in str(error) and "shape differs" not in str(error)


def refuse(names: Sequence[str], group: int) -> None:
    """Makes all ranks fail that wait for requests of these names: what this rank sends can never fit them."""
    nothing = torch.zeros(1, dtype=torch.int64)
    works = [_start(name, nothing, group, call_site()) for name in names]
    for work in works:
        with contextlib.suppress(SirtakiInternalError):
            work.wait()


def _start(name: str, tensor: torch.Tensor, group: int, site: str) -> Any:
    described = [describe(tensor, tensor)]
    return core.submit(
        _ALLREDUCE, name, described, op=int(Sum), process_set=group, site=site, awaited=True, keep=tensor
    )


def _count(ballot: Ballot, name: str, group: int) -> list[list[int]] | None:
    """For each of `asked` how many ranks have a dense gradient, and how many a sparse one. None if the ranks' lists
    differ.
    """
    asked, listed = ballot.asked, [*ballot.asked, *ballot.known]
    grads = [slot.parameter.grad if ballot.wanted(slot) else None for slot in asked]
    dense = [int(grad is not None and not grad.is_sparse) for grad in grads]
    sparse = [int(grad is not None and grad.is_sparse) for grad in grads]
    words = _words_of([ballot.subject, *(_described(slot) for slot in listed)])
    paper = torch.tensor([1, *words, *(word * word for word in words), *dense, *sparse], dtype=torch.int64)
    site = f"{call_site()} ({ballot.why})" if ballot.why else call_site()
    with missing_parameters_in_error(lambda: [slot.name for slot in listed], group):
        _start(name, paper, group, site).wait()
    result = paper.tolist()
    voters, sums, squares = result[0], result[1 : 1 + _WORDS], result[1 + _WORDS : 1 + 2 * _WORDS]
    # Numbers are equal if and only if their mean square is the square of their mean.
    if any(voters * square != total * total for total, square in zip(sums, squares, strict=True)):
        return None
    counts = result[1 + 2 * _WORDS :]
    return [counts[: len(asked)], counts[len(asked) :]]


def _described(slot: Slot) -> tuple[str, str]:
    parameter = slot.parameter
    return slot.name, f"{tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')} {parameter.device.type}"


def _words_of(listed: Sequence[Any]) -> list[int]:
    digest = hashlib.sha256(json.dumps(listed).encode()).digest()
    return [int.from_bytes(digest[i * _WORD : (i + 1) * _WORD], "little") for i in range(_WORDS)]


def _sort_alike(ballot: Ballot, group: int) -> None:
    """Every rank has noticed the difference, so that all come here."""
    asked, known = ballot.asked, ballot.known
    own: dict[str, Any] = {
        "rank": core.rank(),
        "why": ballot.why,
        "asked": [_described(slot) for slot in asked],
        "known": [ballot.subject, *(_described(slot) for slot in known)],
    }
    own = json.loads(json.dumps(own))
    everyone = [json.loads(part) for part in allgather_bytes(json.dumps(own).encode(), "allgather.parameters", group)]
    by_rank = {rank["rank"]: dict([*rank["asked"], *rank["known"][1:]]) for rank in everyone}
    text = difference({rank: list(held) for rank, held in by_rank.items()}) or _other_shape(by_rank)
    if text:
        raise SirtakiInternalError(text)
    places = {name: place for place, (name, _) in enumerate(everyone[0]["asked"])}
    if any(slot.name not in places for slot in asked) or any(r["known"] != own["known"] for r in everyone):
        why = "".join(f"; rank {rank['rank']}: {rank['why']}" for rank in everyone if rank["why"])
        raise SirtakiInternalError(
            "the ranks' optimizers hold the same parameters, but not since the same step: ranks must freeze, unfreeze, "
            f"add, replace and remove parameters, and set gradients, at the same point of the program{why}"
        )
    asked.sort(key=lambda slot: places[slot.name])


def _other_shape(by_rank: dict[int, dict[str, str]]) -> str:
    first, *others = by_rank
    for name, described in by_rank[first].items():
        for rank in others:
            if by_rank[rank][name] != described:
                return (
                    f"the parameter {name} is {described} on rank {first} and {by_rank[rank][name]} on rank {rank}: "
                    "a parameter must have the same shape, dtype and kind of device on all ranks"
                )
    return ""
