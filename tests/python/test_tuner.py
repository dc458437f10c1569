"""The tuner's search, with invented times of steps."""

import itertools

import pytest

from sirtaki.timing.halving import Candidate, Result, candidates, halving

PRESENT = Candidate(1.0, 128 << 20)
LARGE = Candidate(4.0, 128 << 20)


def found(times: dict[Candidate, float], later: dict[Candidate, list[float]] | None = None) -> tuple[Result, list]:
    """The result, and what was measured. times: of a step. later: instead, in the comparison at the end."""
    search, asked = halving(candidates(PRESENT)), []
    repeated = {choice: itertools.chain(values) for choice, values in (later or {}).items()}
    choice, samples = next(search)
    try:
        while True:
            asked.append((choice, samples))
            step = times.get(choice, 1.0)
            if samples > 2 and choice in repeated:
                step = next(repeated[choice])
            choice, samples = search.send(step)
    except StopIteration as end:
        return end.value, asked


def test_the_present_setting_is_among_few_distinct_candidates():
    for present in (PRESENT, Candidate(1.0, 0), Candidate(1.0, 16 << 20)):
        choices = candidates(present)
        assert choices[0] == present and len(set(choices)) == len(choices) <= 5


def test_what_is_faster_each_time_is_kept():
    result, asked = found({LARGE: 0.9})
    assert result == Result(LARGE, pytest.approx(0.1), 0.9)
    assert [samples for _, samples in asked] == [1] * 5 + [2] * 2 + [4] * 4
    assert [choice for choice, samples in asked if samples == 4] == [PRESENT, LARGE] * 2


@pytest.mark.parametrize("later", [[0.9, 0.98], [1.0, 0.8], [0.975, 0.9]])
def test_what_is_not_faster_by_three_percent_each_time_is_not_kept(later):
    result, _ = found({LARGE: 0.9}, {LARGE: later})
    assert result.kept == PRESENT and result.won == 0


def test_nothing_is_kept_where_nothing_is_faster():
    result, asked = found({})
    assert result == Result(PRESENT, 0.0, 1.0) and len(asked) == 7
