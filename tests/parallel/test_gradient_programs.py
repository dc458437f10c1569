"""Random training programs: each ends as one process on the joined data does, or is refused on all ranks.

TEST_PROGRAMS: how many, from number 0 on; 2000 before a release.
"""

import os
import warnings

import pytest
import torch
from gradient_programs import Run, draw
from ranks import ranks

import sirtaki.torch as hvd

COUNT = int(os.environ.get("TEST_PROGRAMS", "100"))
FIRST = int(os.environ.get("TEST_FIRST_PROGRAM", "0"))
# A wait that was given up in the middle of backward, before a late hook; names that two optimizers both add.
FOUND_WRONG = (1516, 1907)
REFUSALS = (
    "was replaced or changed during backward",
    "computed more than backward_passes_per_step",
)


def outcome(seed: int) -> tuple[str, list[list[float]]]:
    """(why the program was refused, or "", the parameters)."""
    try:
        return "", Run(draw(seed), hvd.rank(), hvd.size()).run()
    except (RuntimeError, AssertionError) as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        return str(error), []


def largest_difference(one: list[list[float]], other: list[list[float]]) -> float:
    pairs = zip(map(torch.tensor, one), map(torch.tensor, other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@ranks(2, 3)
@pytest.mark.filterwarnings("ignore")
def test_random_programs(rank_count):
    refused, wrong = 0, []
    for seed in (*range(FIRST, FIRST + COUNT), *FOUND_WRONG):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            why, own = outcome(seed)
        everyone = hvd.allgather_object((why, own))
        assert len({bool(why) for why, _ in everyone}) == 1, (seed, draw(seed), everyone)
        refused += bool(why)
        if not why:
            expected = Run(draw(seed), -1, rank_count).run()
            if max(largest_difference(values, expected) for _, values in everyone) > 1e-9:
                wrong.append((seed, draw(seed), own, expected))
    assert not wrong, (len(wrong), wrong[0])
    assert refused < COUNT / 2, refused
