"""Wrong calls: refused at once with the value, or, if the ranks disagree, an error on every rank; the next call
works.
"""

import re

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd


def check_alive(count: int) -> None:
    """Nothing is lost by an error."""
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="alive").tolist() == [count] * 3


def first(one, other):
    """`one` on rank 0, `other` on the rest."""
    return one if hvd.rank() == 0 else other


MISMATCHES = {
    "dtype": lambda: hvd.allreduce(first(torch.ones(4), torch.ones(4, dtype=torch.float64)), name="m"),
    "allreduce dimensions": lambda: hvd.allreduce(first(torch.ones(4), torch.ones(2, 2)), name="m"),
    "allreduce shape": lambda: hvd.allreduce(first(torch.ones(2, 3), torch.ones(3, 2)), name="m"),
    "allgather trailing": lambda: hvd.allgather(first(torch.ones(2, 3), torch.ones(2, 4)), name="m"),
    "allgather dimensions": lambda: hvd.allgather(first(torch.ones(2, 3), torch.ones(6)), name="m"),
    "allgather dtype": lambda: hvd.allgather(first(torch.ones(2), torch.ones(2).int()), name="m"),
    "broadcast shape": lambda: hvd.broadcast(first(torch.ones(2), torch.ones(3)), 0, name="m"),
    "broadcast root": lambda: hvd.broadcast(torch.ones(2), first(0, 1), name="m"),
    "reducescatter shape": lambda: hvd.reducescatter(first(torch.ones(2, 3), torch.ones(3, 3)), name="m"),
    "reducescatter dimensions": lambda: hvd.reducescatter(first(torch.ones(6), torch.ones(6, 1)), name="m"),
    "alltoall trailing": lambda: hvd.alltoall(first(torch.ones(hvd.size(), 2), torch.ones(hvd.size(), 3)), name="m"),
    "op": lambda: hvd.allreduce(torch.ones(2), op=first(hvd.Sum, hvd.Min), name="m"),
    "prescale": lambda: hvd.allreduce(torch.ones(2), prescale_factor=first(1.0, 2.0), name="m"),
    "postscale": lambda: hvd.allreduce(torch.ones(2), postscale_factor=first(1.0, 2.0), name="m"),
    "group size": lambda: hvd.grouped_allreduce([torch.ones(2)] * first(1, 2), name="m"),
}


@ranks(2, 3)
@pytest.mark.parametrize("kind", MISMATCHES)
def test_mismatch_is_an_error_on_every_rank(rank_count, kind):
    for _ in range(2):  # the second time the response cache has something to get wrong
        with pytest.raises(hvd.HorovodInternalError) as caught:
            MISMATCHES[kind]()
        for rank in range(rank_count):
            assert re.search(rf"\b{rank}\b", str(caught.value)), str(caught.value)
        check_alive(rank_count)


@ranks(2, 3)
def test_mismatch_after_the_same_call_was_cached(rank_count):
    for _ in range(3):
        hvd.allreduce(torch.ones(4), name="cached")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(first(torch.ones(4), torch.ones(5)), name="cached")
    assert hvd.allreduce(torch.ones(5), op=hvd.Sum, name="cached").tolist() == [rank_count] * 5


@ranks(3)
def test_the_table_of_what_each_rank_asked(rank_count):
    """C47: rank, operation, name, shape, dtype and the line of the program, on every rank."""
    shapes = [(2, 3), (3, 2), (2, 3)]
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(shapes[hvd.rank()]), name="layer1.weight")
    text = str(caught.value)
    rows = [line for line in text.splitlines() if "test_errors.py:" in line]
    assert len(rows) >= 3, text
    for rank, shape in enumerate(shapes):
        row = next(line for line in rows if line.split()[0] == str(rank))
        assert str(shape) in row and "float32" in row, text
    assert "allreduce" in text and "layer1.weight" in text
    check_alive(rank_count)


@ranks(2)
def test_different_verbs_under_one_name(rank_count):
    with pytest.raises(hvd.HorovodInternalError):
        handle = first(
            lambda: hvd.allreduce_async(torch.ones(2), name="same"),
            lambda: hvd.allreduce_async(torch.ones(2), name="same", prescale_factor=3.0),
        )()
        hvd.synchronize(handle)
    check_alive(rank_count)


@ranks(2)
def test_name_in_flight(rank_count):
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [2.0, 2.0]


class Unreadable(torch.Tensor):
    """A subclass that takes over the dispatch of operators."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


BAD_TENSORS = {
    "a list": [1.0, 2.0],
    "a number": 3.0,
    "None": None,
    "not contiguous": torch.ones(4, 4).t()[1:],
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.ones(2, device="meta"),
    "quantized": torch.empty(2, dtype=torch.quint8),
    "subclass": torch.ones(2).as_subclass(Unreadable),
}
VERBS = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allreduce_async": hvd.allreduce_async,
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([torch.ones(1), t]),
    "allgather": hvd.allgather,
    "grouped_allgather": lambda t: hvd.grouped_allgather([t]),
    "broadcast": lambda t: hvd.broadcast(t, 0),
    "broadcast_": lambda t: hvd.broadcast_(t, 0),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t]),
}


@ranks(2)
@pytest.mark.parametrize("verb", VERBS)
def test_bad_tensors_are_refused_at_the_call(rank_count, verb):
    for what, tensor in BAD_TENSORS.items():
        with pytest.raises(ValueError):
            VERBS[verb](tensor)
            pytest.fail(f"{verb} took {what}")
    check_alive(rank_count)


@ranks(2)
def test_bad_values_are_refused_with_the_value(rank_count):
    one = torch.ones(rank_count, 2)
    nan, inf = float("nan"), float("inf")
    calls = [
        (lambda: hvd.allreduce(one, prescale_factor=nan), "nan"),
        (lambda: hvd.allreduce(one, postscale_factor=inf), "inf"),
        (lambda: hvd.allreduce(one, prescale_factor="x"), "x"),
        (lambda: hvd.reducescatter(one, prescale_factor=nan), "nan"),
        (lambda: hvd.allreduce(one, op=17), "17"),
        (lambda: hvd.allreduce(one, op="sum"), "sum"),
        (lambda: hvd.allreduce(one, name=5), "5"),
        (lambda: hvd.allreduce(one, process_set="x"), "x"),
        (lambda: hvd.allreduce(one, process_set=hvd.ProcessSet([0])), "not registered"),
        (lambda: hvd.broadcast(one, 2), "2"),
        (lambda: hvd.broadcast(one, -1), "-1"),
        (lambda: hvd.broadcast(one, "a"), "a"),
        (lambda: hvd.broadcast(one, None), "None"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "dimension"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "dimension"),
        (lambda: hvd.reducescatter(one, op=9), "9"),
        (lambda: hvd.alltoall(torch.tensor(1.0)), "dimension"),
        (lambda: hvd.alltoall(torch.ones(rank_count + 1)), str(rank_count + 1)),
        (lambda: hvd.alltoall(one, torch.tensor([1, 2], dtype=torch.int32)), "2"),
        (lambda: hvd.alltoall(one, torch.tensor([1], dtype=torch.int32)), "1"),
        (lambda: hvd.alltoall(one, torch.tensor([1, 1])), "int64"),
        (lambda: hvd.alltoall(one, torch.tensor([[1, 1]], dtype=torch.int32)), "dimension"),
        (lambda: hvd.alltoall(one, [-1, 1]), "-1"),
        (lambda: hvd.alltoall(one, [1.5, 0]), "1.5"),
        (lambda: hvd.grouped_allreduce([]), "empty"),
        (lambda: hvd.grouped_allreduce(one), "list"),
        (lambda: hvd.synchronize("x"), "x"),
        (lambda: hvd.poll(10**9), str(10**9)),
        (lambda: hvd.join(device="gpu"), "gpu"),
        (lambda: hvd.barrier(process_set=3), "3"),
        (lambda: hvd.broadcast_parameters(iter([one]), 0), "list"),
        (lambda: hvd.broadcast_parameters({"a": 5}, 0), "a"),
        (lambda: hvd.broadcast_object(1, "zero"), "zero"),
        (lambda: hvd.sparse_allreduce_async(one, "s", hvd.Sum), "sparse"),
        (lambda: hvd.sparse_allreduce_async(one.to_sparse(), "s", hvd.Max), "Max"),
        (lambda: hvd.ProcessSet("ab"), "ab"),
        (lambda: hvd.ProcessSet([0, "b"]), "b"),
        (lambda: hvd.ProcessSet([-1]), "-1"),
        (lambda: hvd.ProcessSet([0, 0]), "0, 0"),
        (lambda: hvd.ProcessSet(7), "7"),
    ]
    for number, (call, shown) in enumerate(calls):
        with pytest.raises(ValueError) as caught:
            call()
            pytest.fail(f"call {number} was not refused")
        assert shown in str(caught.value), (number, str(caught.value))
    assert hvd.synchronize(10**9) is None
    check_alive(rank_count)


@ranks(2)
def test_overlapping_memory_is_refused(rank_count):
    memory = torch.ones(10)
    with pytest.raises(ValueError):
        hvd.grouped_allreduce_([memory[:6], memory[4:]])
    check_alive(rank_count)


@ranks(2)
def test_reducescatter_with_adasum(rank_count):
    with pytest.raises(RuntimeError):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    check_alive(rank_count)


@ranks(2, 3)
def test_before_init_and_after_shutdown(rank_count):
    hvd.shutdown()
    assert not hvd.is_initialized()
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
        with pytest.raises(ValueError, match="init"):
            question()
    for call in (lambda: hvd.allreduce(torch.ones(2)), hvd.barrier, hvd.join):
        with pytest.raises(hvd.HorovodInternalError):
            call()
    hvd.shutdown()  # harmless
    hvd.init()
    hvd.init()
    check_alive(rank_count)


@ranks(2)
def test_wrong_arguments_of_init(rank_count):
    hvd.shutdown()
    for arguments in (
        {"comm": "x"},
        {"comm": 3},
        {"comm": [0, "a"]},
        {"process_sets": 3},
        {"process_sets": "static"},
        {"process_sets": [[0, 1]]},
        {"process_sets": [hvd.ProcessSet([0]), hvd.ProcessSet([0])]},
        {"process_sets": [hvd.ProcessSet([0, 1])]},
        {"process_sets": [hvd.ProcessSet([0, 7])]},
        {"process_sets": [hvd.ProcessSet([hvd_rank()])]},
    ):
        with pytest.raises(ValueError):
            hvd.init(**arguments)
        assert not hvd.is_initialized(), arguments
    hvd.init()
    check_alive(rank_count)


def hvd_rank() -> int:
    """A different number on each rank, while nothing is initialised."""
    import os

    return int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


@ranks(2)
def test_a_name_that_is_no_text_is_refused_at_the_call(rank_count):
    with pytest.raises(ValueError, match="UTF-8"):
        hvd.allreduce(torch.ones(2), name="half a pair \ud800")
    check_alive(rank_count)
