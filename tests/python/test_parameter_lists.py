"""Which ranks lack which parameters, in words."""

from sirtaki.checks.parameter_lists import difference


def test_equal_lists_have_no_difference() -> None:
    assert difference({0: ["a", "b"], 1: ["b", "a"]}) == ""


def test_errors_name_what_each_rank_lacks() -> None:
    text = difference({0: ["a", "own"], 1: ["a", "b"], 4: ["a", "b"]})
    assert "(ranks 0, 1, 4: 2): only rank 0 has own; rank 0 lacks b. " in text


def test_a_name_that_occurs_several_times() -> None:
    assert "(rank 0: 1; rank 1: 3): only rank 1 has kernel, kernel. " in difference({0: ["kernel"], 1: ["kernel"] * 3})


def test_long_lists_are_cut() -> None:
    names = [f"layer{number}" for number in range(8)]
    text = difference({0: [], **dict.fromkeys(range(1, 9), names)})
    assert "(rank 0: 0; ranks 1, 2, 3, 4, 5 and 3 more: 8): rank 0 lacks layer0, layer1, " in text
    assert "layer4 and 3 more. " in text and "layer5" not in text
