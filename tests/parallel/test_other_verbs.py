"""allgather, broadcast, alltoall, reducescatter, barrier against references."""

import time

import pytest
import torch
from ranks import ranks
from references import FLOATS, INTEGERS, check, of_all, reduced, values

import sirtaki.torch as hvd
from sirtaki.torch.collectives import point_to_point
from sirtaki.torch.ops import verbs

ALL_DTYPES = (*FLOATS, *INTEGERS, torch.bool)


@ranks(1, 2, 3, 4)
def test_allgather_uneven(rank_count):
    for dtype in ALL_DTYPES:
        for rows in (lambda rank: rank + 1, lambda rank: rank, lambda rank: 2 * (rank == rank_count - 1)):
            parts = [values(rank, (rows(rank), 3), dtype) for rank in range(rank_count)]
            check(hvd.allgather(parts[hvd.rank()], name=f"gather.{dtype}"), torch.cat(parts), str(dtype))
    assert hvd.allgather(torch.zeros(0, 4)).shape == (0, 4)
    assert hvd.allgather(torch.zeros(2, 0)).shape == (2 * rank_count, 0)


@ranks(2, 3)
def test_grouped_and_asynchronous_allgather(rank_count):
    shapes = [(hvd.rank() + 1, 2), (2,), (0, 3)]
    own = [values(hvd.rank(), shape, torch.float32, i) for i, shape in enumerate(shapes)]
    results = hvd.grouped_allgather(own, name="group")
    assert isinstance(results, list)
    assert results[0].shape == (sum(range(1, rank_count + 1)), 2)
    check(results[1], torch.cat(of_all(rank_count, (2,), torch.float32, 1)))
    assert results[2].shape == (0, 3)
    again = hvd.synchronize(hvd.grouped_allgather_async(own, name="group"))
    assert [r.tolist() for r in again] == [r.tolist() for r in results]
    single = hvd.synchronize(hvd.allgather_async(own[1], name="single"))
    assert single.tolist() == results[1].tolist()


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no exchange API")
@ranks(2)
def test_plain_tensors_need_no_description_in_python(rank_count, monkeypatch):
    def described(*_):
        raise AssertionError("Python has described a tensor")

    for module in (verbs, point_to_point):
        monkeypatch.setattr(module, "describe", described)
    own, other, both = hvd.rank(), 1 - hvd.rank(), torch.arange(4.0)
    given = torch.full((2,), float(own))
    results = {
        "allreduce": hvd.allreduce(given, op=hvd.Sum),
        "allgather": hvd.allgather(given),
        "broadcast": hvd.broadcast(given, 1),
        "alltoall": hvd.alltoall(given),
        "reducescatter": hvd.reducescatter(both, op=hvd.Sum),
    }
    started = {
        "allreduce": hvd.allreduce_async(given, op=hvd.Sum),
        "allgather": hvd.allgather_async(given),
        "broadcast": hvd.broadcast_async(given, 1),
        "alltoall": hvd.alltoall_async(given),
        "reducescatter": hvd.reducescatter_async(both, op=hvd.Sum),
    }
    later = {verb: hvd.synchronize(handle) for verb, handle in started.items()}
    output, received = later.pop("alltoall")
    assert received.tolist() == [1, 1] and received.dtype == torch.int32
    later["alltoall"] = output
    rows = [0.0, 2.0] if own == 0 else [4.0, 6.0]
    due = {"allreduce": [1.0] * 2, "allgather": [0.0, 0.0, 1.0, 1.0], "broadcast": [1.0] * 2, "alltoall": [0.0, 1.0]}
    for found in (results, later):
        assert {verb: result.tolist() for verb, result in found.items()} == {**due, "reducescatter": rows}
    assert hvd.allreduce_(given, op=hvd.Sum) is given and hvd.broadcast_(both, 0) is both
    memory = torch.empty(4)
    assert hvd.allgather(torch.full((2,), float(own)), out=memory) is memory and memory.tolist() == due["allgather"]
    sent = hvd.isend(both, other)
    assert hvd.recv(torch.empty(4), other).tolist() == both.tolist()
    assert hvd.synchronize(sent) is None


@ranks(2)
def test_results_are_tensors_of_their_own(rank_count):
    given = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    for make in (hvd.allgather, hvd.allreduce, lambda tensor: hvd.broadcast(tensor, 0)):
        first, second = make(given), make(given)
        assert type(first) is torch.Tensor and not first.requires_grad
        first.add_(1)  # changes neither the input nor another result
        assert second.tolist()[:3] == given.tolist() == [1.0] * 3
    kept = [hvd.allgather(torch.full((5,), float(number))) for number in range(20)]
    assert [result.tolist() for result in kept] == [[float(number)] * 10 for number in range(20)]


@ranks(1, 2, 3, 4)
def test_broadcast(rank_count):
    for root in range(rank_count):
        for dtype in ALL_DTYPES:
            for shape in ((), (0,), (5, 2)):
                own = values(hvd.rank(), shape, dtype)
                result = hvd.broadcast(own, root, name=f"b.{dtype}.{shape}")
                check(result, values(root, shape, dtype), f"{dtype} {shape}")
                assert own.tolist() == values(hvd.rank(), shape, dtype).tolist()
                assert hvd.broadcast_(own, root, name=f"i.{dtype}.{shape}") is own
                check(own, values(root, shape, dtype))
    handle = hvd.broadcast_async(torch.full((2,), float(hvd.rank())), 0, name="async")
    assert hvd.synchronize(handle).tolist() == [0.0, 0.0]


@ranks(1, 2, 3, 4)
def test_alltoall_equal_parts(rank_count):
    for dtype in ALL_DTYPES:
        parts = of_all(rank_count, (2 * rank_count, 3), dtype)
        result = hvd.alltoall(parts[hvd.rank()], name=f"a.{dtype}")
        at = 2 * hvd.rank()
        check(result, torch.cat([part[at : at + 2] for part in parts]), str(dtype))


@ranks(1, 2, 3, 4)
def test_alltoall_with_splits(rank_count):
    """Rank r sends r + t rows to rank t, and keeps one row that nobody gets."""
    splits = [[r + t for t in range(rank_count)] for r in range(rank_count)]
    parts = [values(r, (sum(splits[r]) + 1, 2), torch.float32) for r in range(rank_count)]
    expected = []
    for r, part in enumerate(parts):
        start = sum(splits[r][: hvd.rank()])
        expected.append(part[start : start + splits[r][hvd.rank()]])
    own = torch.tensor(splits[hvd.rank()], dtype=torch.int32)
    output, received = hvd.alltoall(parts[hvd.rank()], own, name="with splits")
    check(output, torch.cat(expected))
    assert received.dtype == torch.int32
    assert received.tolist() == [row[hvd.rank()] for row in splits]
    handle = hvd.alltoall_async(parts[hvd.rank()], splits[hvd.rank()], name="list of splits")
    output, received = hvd.synchronize(handle)
    check(output, torch.cat(expected))
    output, received = hvd.synchronize(hvd.alltoall_async(torch.ones(rank_count, 1), name="none"))
    assert received.tolist() == [1] * rank_count


@ranks(1, 2, 3, 4)
@pytest.mark.parametrize("op", (hvd.Average, hvd.Sum), ids=str)
def test_reducescatter(rank_count, op):
    """The first `rows % ranks` ranks get one row more; with fewer rows than ranks some get none."""
    for dtype in (*FLOATS, torch.int32, torch.int64):
        for rows in (0, 1, rank_count, 2 * rank_count + 1):
            parts = of_all(rank_count, (rows, 3), dtype)
            counts = [rows // rank_count + (r < rows % rank_count) for r in range(rank_count)]
            start = sum(counts[: hvd.rank()])
            expected = reduced(parts, op)[start : start + counts[hvd.rank()]]
            check(hvd.reducescatter(parts[hvd.rank()], op=op, name=f"r.{dtype}.{rows}"), expected, f"{dtype} {rows}")


@ranks(2, 3)
def test_reducescatter_forms(rank_count):
    own = [torch.ones(rank_count, 2), torch.full((rank_count,), 2.0, dtype=torch.float64)]
    results = hvd.grouped_reducescatter(own, op=hvd.Sum, name="group")
    assert isinstance(results, list)
    assert [r.tolist() for r in results] == [[[rank_count] * 2], [2.0 * rank_count]]
    scaled = hvd.reducescatter(own[0], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    assert scaled.tolist() == [[0.5 * rank_count] * 2]
    handle = hvd.grouped_reducescatter_async(own, op=hvd.Sum, name="async")
    assert [r.tolist() for r in hvd.synchronize(handle)] == [[[rank_count] * 2], [2.0 * rank_count]]
    assert hvd.synchronize(hvd.reducescatter_async(own[1])).tolist() == [2.0]
    assert hvd.reducescatter(own[0], compression=hvd.Compression.fp16).dtype == torch.float32


@ranks(2, 3)
def test_results_go_into_given_memory(rank_count):
    """In every way of calling, again and again: the third and later calls need no vote."""
    me = hvd.rank()
    parts = [values(rank, (rank + 1, 3), torch.float32) for rank in range(rank_count)]
    whole = torch.cat(parts)
    full = [values(rank, (rank_count * 2 + 1, 3), torch.float32) for rank in range(rank_count)]
    rows = 3 if me == 0 else 2
    start = 0 if me == 0 else 2 * me + 1
    equal = [values(rank, (rank_count * 2, 3), torch.int64) for rank in range(rank_count)]
    turned = torch.cat([tensor[2 * me : 2 * me + 2] for tensor in equal])
    for step in range(6):
        out = torch.full_like(whole, -1)
        assert hvd.allgather(parts[me], name="into", out=out) is out
        check(out, whole, f"step {step}")
        out.fill_(-1)
        assert hvd.synchronize(hvd.allgather_async(parts[me], name="into.async", out=out)) is out
        check(out, whole, f"step {step}")
        out = torch.full((rows, 3), -1.0, device=full[me].device)
        assert hvd.reducescatter(full[me], name="into", op=hvd.Sum, out=out) is out
        check(out, sum(full)[start : start + rows], f"step {step}")
        assert hvd.synchronize(hvd.reducescatter_async(full[me], name="into.async", op=hvd.Sum, out=out)) is out
        check(out, sum(full)[start : start + rows], f"step {step}")
        out = torch.full_like(turned, -1)
        assert hvd.alltoall(equal[me], name="into", out=out) is out
        check(out, turned, f"step {step}")
        given, received = hvd.synchronize(hvd.alltoall_async(equal[me], name="into.async", out=out))
        assert given is out and received.tolist() == [2] * rank_count


@ranks(2)
def test_memory_that_does_not_fit_is_refused(rank_count):
    """What only the ranks together know is refused on the rank alone that gave it; all others get their results."""
    me = hvd.rank()
    tensor = torch.full((me + 1, 2), float(me))
    whole = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    out = torch.full((3 if me == 0 else 4, 2), -1.0, device=tensor.device)
    if me == 0:
        check(hvd.allgather(tensor, name="misfit", out=out), whole)
    else:
        with pytest.raises(ValueError, match=r"has 32 bytes, but the result has the shape \(3, 2\) and 24 bytes"):
            hvd.allgather(tensor, name="misfit", out=out)
        assert out.eq(-1).all()
    with pytest.raises(ValueError, match=r"torch.float32 on cpu with shape \(rows, 2\).*got torch.float64"):
        hvd.allgather(tensor, out=torch.empty(3, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="contiguous"):
        hvd.reducescatter(tensor, out=torch.empty(2, 2).t())
    both = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="overlap"):
        hvd.alltoall(both[:2], out=both[1:3])
    with pytest.raises(ValueError, match="out has no gradient"):
        hvd.alltoall(torch.zeros(2, 2, requires_grad=True), out=both)
    with pytest.raises(ValueError, match=r"Compression\.none"):
        hvd.reducescatter(both, compression=hvd.Compression.fp16, out=torch.empty(2, 2))
    check(hvd.allgather(tensor, name="misfit"), whole)


@ranks(2)
def test_large_results_reuse_memory_of_dropped_ones_only(rank_count):
    tensor = torch.full((1 << 19,), float(hvd.rank()))
    first = hvd.allgather(tensor, name="large")
    second = hvd.allgather(tensor + 10, name="large")
    row = first[5:6]
    address = first.data_ptr()
    assert address != second.data_ptr()
    del first
    third = hvd.allgather(tensor + 20, name="large")
    assert third.data_ptr() not in (address, second.data_ptr())  # `row` still uses the first one's memory
    assert (row.item(), second[-1].item(), third[-1].item()) == (0.0, 11.0, 21.0)
    del row
    fourth = hvd.allreduce(torch.cat([tensor, tensor]), op=hvd.Sum, name="large")
    assert fourth.data_ptr() == address and fourth.eq(1.0).all() and not fourth._is_view()


@ranks(2, 3)
def test_barrier_waits_for_the_last(rank_count):
    hvd.barrier()
    start = time.monotonic()
    if hvd.rank() == rank_count - 1:
        time.sleep(0.5)
    hvd.barrier()
    if hvd.rank() != rank_count - 1:
        assert time.monotonic() - start > 0.3


@ranks(2)
def test_in_place_calls(rank_count):
    """C41: the calls whose name ends with an underscore write into their argument, all others leave it alone."""
    calls = {
        "allreduce": lambda t: hvd.allreduce(t),
        "allreduce_": lambda t: hvd.allreduce_(t),
        "allreduce_async": lambda t: hvd.synchronize(hvd.allreduce_async(t)),
        "allreduce_async_": lambda t: hvd.synchronize(hvd.allreduce_async_(t)),
        "grouped_allreduce": lambda t: hvd.grouped_allreduce([t]),
        "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([t]),
        "grouped_allreduce_async": lambda t: hvd.synchronize(hvd.grouped_allreduce_async([t])),
        "grouped_allreduce_async_": lambda t: hvd.synchronize(hvd.grouped_allreduce_async_([t])),
        "allgather": lambda t: hvd.allgather(t),
        "grouped_allgather": lambda t: hvd.grouped_allgather([t]),
        "broadcast": lambda t: hvd.broadcast(t, 1),
        "broadcast_": lambda t: hvd.broadcast_(t, 1),
        "alltoall": lambda t: hvd.alltoall(t),
        "reducescatter": lambda t: hvd.reducescatter(t),
        "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t]),
    }
    for name, call in calls.items():
        own = torch.full((4,), float(hvd.rank()))
        call(own)
        unchanged = own.tolist() == [float(hvd.rank())] * 4
        in_place = name.endswith("_") and (hvd.rank() == 0 or name != "broadcast_")
        assert unchanged != in_place, name


@ranks(2, 3)
def test_rows_that_change_on_some_ranks_only(rank_count):
    """What the others have cached must not decide for the rank whose shape is new."""
    for repetition in range(2):
        for changed in range(rank_count):
            for rows in (0, 4, 0, 0, 5, 5):
                own = torch.full((rows if hvd.rank() == changed else repetition, 1), float(hvd.rank()))
                result = hvd.allgather(own, name="changing rows")
                assert result.shape == (rows + repetition * (rank_count - 1), 1), (changed, rows)
                assert result.sum().item() == rows * changed + repetition * (sum(range(rank_count)) - changed)
