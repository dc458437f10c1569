"""allreduce and its forms against references computed on one rank."""

import math
import time

import pytest
import torch
from ranks import ranks
from references import FLOATS, INTEGERS, check, of_all, reduced, values

import sirtaki.torch as hvd

OPS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
SHAPES = ((), (0,), (1,), (7,), (3, 0, 2), (5, 4, 3))


@ranks(1, 2, 3, 4)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_dtype(rank_count, op):
    for dtype in FLOATS + INTEGERS:
        for shape in SHAPES:
            own = values(hvd.rank(), shape, dtype)
            before = own.clone()
            result = hvd.allreduce(own, op=op, name=f"{op}.{dtype}.{shape}")
            check(result, reduced(of_all(rank_count, shape, dtype), op), f"{op} {dtype} {shape}")
            assert own.tolist() == before.tolist(), "allreduce changed its argument"


@ranks(3, 4)
def test_rounded_sums_are_the_same_bits_everywhere_and_every_time(rank_count):
    """From one hand-over to many pieces, with ranks that come in another order each time."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in (11, 3_001, 300_007):
            own = torch.randn(count, generator=torch.Generator().manual_seed(hvd.rank())).to(dtype)
            results = []
            for turn in range(3):
                time.sleep(0.003 * ((hvd.rank() + turn) % rank_count))
                results.append(hvd.allreduce(own, op=hvd.Sum, name=f"{dtype} {count} {turn}"))
            everybodys = hvd.allgather(torch.stack(results).view(torch.uint8))
            assert all(torch.equal(other, results[0].view(torch.uint8)) for other in everybodys), (dtype, count)


@ranks(2, 3)
def test_bool(rank_count):
    parts = of_all(rank_count, (50,), torch.bool)
    for op in (hvd.Sum, hvd.Max):
        assert hvd.allreduce(parts[hvd.rank()], op=op).tolist() == torch.stack(parts).any(0).tolist()
    for op in (hvd.Min, hvd.Product):
        assert hvd.allreduce(parts[hvd.rank()], op=op).tolist() == torch.stack(parts).all(0).tolist()
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(parts[0], op=hvd.Average)


@ranks(2, 3)
def test_scale_factors(rank_count):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        parts = of_all(rank_count, (20,), dtype)
        expected = (sum(part.double() * 0.25 for part in parts) * 3.0).to(dtype)
        result = hvd.allreduce(parts[hvd.rank()], op=hvd.Sum, prescale_factor=0.25, postscale_factor=3.0)
        check(result, expected, str(dtype))
    whole = hvd.allreduce(torch.tensor([2, 4], dtype=torch.int32), op=hvd.Sum, postscale_factor=0.5)
    assert whole.tolist() == [rank_count, 2 * rank_count]


@ranks(2, 3)
def test_integer_average_truncates_toward_zero(rank_count):
    own = torch.tensor([-1, 1, -5, 5, 0], dtype=torch.int64) * (hvd.rank() + 1)
    total = torch.tensor([-1, 1, -5, 5, 0]) * sum(range(1, rank_count + 1))
    assert hvd.allreduce(own).tolist() == (total / rank_count).trunc().long().tolist()


@ranks(2, 3)
def test_integer_average_is_exact(rank_count):
    """C90: never through floating point, up to the ends of the dtype, alone and grouped, and by reducescatter."""
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        large = min(2**53 + 1, limits.max)
        numbers = [limits.min, limits.max, large, 1, 0, 1_700_000_000_000_000_123 % (large + 1)]
        own = torch.tensor(numbers, dtype=dtype)
        assert hvd.allreduce(own, name=f"equal {dtype}").tolist() == numbers, dtype
        assert hvd.grouped_allreduce([own, own], name=f"group {dtype}")[1].tolist() == numbers, dtype
        parts = hvd.reducescatter(torch.tensor(numbers * rank_count, dtype=dtype), name=f"scattered {dtype}")
        assert parts.tolist() == numbers, dtype
        mine = limits.min if hvd.rank() == 0 else limits.max
        total = limits.min + (rank_count - 1) * limits.max
        right = abs(total) // rank_count * (1 if total > 0 else -1)
        assert hvd.allreduce(torch.tensor([mine], dtype=dtype), name=f"ends {dtype}").tolist() == [right], dtype


@ranks(2, 3)
def test_average_of_finite_numbers_is_finite(rank_count):
    """Where the sum is out of range; what is not finite stays what it is. From one hand-over to many pieces."""
    for dtype in FLOATS:
        most = torch.finfo(dtype).max
        numbers = [most, -most, 1.0, -0.0, math.inf if hvd.rank() == 0 else most, math.nan if hvd.rank() else 1.0]
        for repeats in (1, 700, 60_000):
            own = torch.tensor(numbers, dtype=dtype).repeat(repeats)
            for result in (
                hvd.allreduce(own, name=f"ends {dtype} {repeats}"),
                hvd.allreduce_(own.clone(), name=f"in place {dtype} {repeats}"),
                hvd.reducescatter(own.repeat(rank_count), name=f"scattered {dtype} {repeats}"),
            ):
                highest, lowest, one, zero, infinite, nan = result.view(-1, len(numbers)).double().unbind(1)
                assert torch.equal(highest, torch.full_like(highest, most)), (dtype, repeats)
                assert torch.equal(lowest, torch.full_like(lowest, -most)), (dtype, repeats)
                torch.testing.assert_close(one, torch.ones_like(one))
                assert (zero == 0).all() and zero.signbit().all()
                assert (infinite == math.inf).all() and nan.isnan().all()


@ranks(2, 3)
def test_average_keeps_denormals(rank_count):
    for dtype in FLOATS:
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        own = torch.tensor([smallest, -smallest, 5 * smallest], dtype=torch.float64).to(dtype)
        assert own.count_nonzero() == 3
        assert hvd.allreduce(own, name=f"denormals {dtype}").tolist() == own.tolist(), dtype


@ranks(2, 3)
def test_half_precision_accumulates_in_float32(rank_count):
    """C44: sums of 16-bit numbers beyond their range are fine as long as the result is within it."""
    assert hvd.allreduce(torch.full((5,), 60000.0, dtype=torch.float16)).tolist() == [60000.0] * 5
    big = torch.tensor(1e38).bfloat16().item()  # the sum is still a float32
    assert hvd.allreduce(torch.full((5,), big, dtype=torch.bfloat16)).tolist() == [big] * 5
    # 256 + 1 + 1 ... in bfloat16 stays 256 when each addition is rounded.
    own = torch.tensor([256.0 if hvd.rank() == 0 else 1.0], dtype=torch.bfloat16)
    exact = torch.tensor([256.0 + rank_count - 1], dtype=torch.float32).bfloat16()
    assert hvd.allreduce(own, op=hvd.Sum).tolist() == exact.tolist()
    over = hvd.allreduce(torch.full((2,), 60000.0, dtype=torch.float16), op=hvd.Sum)
    assert torch.isinf(over).all()


@ranks(2, 3)
def test_in_place_and_asynchronous_forms(rank_count):
    expected = reduced(of_all(rank_count, (6,), torch.float32), hvd.Sum)
    own = values(hvd.rank(), (6,), torch.float32)
    assert hvd.allreduce_(own, op=hvd.Sum) is own
    check(own, expected)
    own = values(hvd.rank(), (6,), torch.float32)
    handle = hvd.allreduce_async_(own, op=hvd.Sum, name="in place")
    assert isinstance(handle, int)
    assert hvd.synchronize(handle) is own
    check(own, expected)
    own = values(hvd.rank(), (6,), torch.float32)
    handle = hvd.allreduce_async(own, op=hvd.Sum, name="new")
    check(hvd.synchronize(handle), expected)
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="not pending"):
        hvd.poll(handle)


@ranks(2)
def test_poll_becomes_true(rank_count):
    handle = hvd.allreduce_async(torch.ones(10), name="polled")
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).tolist() == [1.0] * 10


@ranks(2, 3)
def test_grouped_forms(rank_count):
    shapes, dtypes = ((3,), (2, 2), (0,), ()), (torch.float32, torch.float64, torch.int32, torch.float16)
    pairs = list(zip(shapes, dtypes, strict=True))
    own = [values(hvd.rank(), shape, dtype, i) for i, (shape, dtype) in enumerate(pairs)]
    expected = [reduced(of_all(rank_count, s, d, i), hvd.Sum) for i, (s, d) in enumerate(pairs)]
    results = hvd.grouped_allreduce(own, op=hvd.Sum, name="group")
    assert isinstance(results, list)
    for result, target in zip(results, expected, strict=True):
        check(result, target)
    results = hvd.synchronize(hvd.grouped_allreduce_async(own, op=hvd.Sum, name="group"))
    assert isinstance(results, tuple)
    for result, target in zip(results, expected, strict=True):
        check(result, target)
    results = hvd.grouped_allreduce_(own, op=hvd.Sum, name="group")
    for result, tensor, target in zip(results, own, expected, strict=True):
        assert result is tensor
        check(result, target)


@ranks(2, 3, 4)
def test_order_may_differ(rank_count):
    order = list(range(20))
    shuffled = order[hvd.rank() :] + order[: hvd.rank()]
    for _ in range(3):
        handles = {
            i: hvd.allreduce_async(torch.full((i + 1,), float(hvd.rank())), op=hvd.Sum, name=f"order.{i}")
            for i in shuffled
        }
        for i in order:
            assert hvd.synchronize(handles[i]).tolist() == [float(sum(range(rank_count)))] * (i + 1)


@ranks(3)
def test_fusion_at_any_threshold(rank_count):
    """C40: sizes around the threshold, mixed dtypes, the threshold changing under way; integers are exact."""
    from sirtaki.native import core

    sizes = (0, 1, 5, 250, 1024, 3000)
    dtypes = (torch.int32, torch.float32, torch.int64, torch.float64)
    for threshold in (4096, 0, 1 << 20, 1000):
        core.set_fusion_threshold(threshold)
        for repetition in range(20):
            cases = [(size, dtype) for size in sizes for dtype in dtypes]
            handles = [
                hvd.allreduce_async(values(hvd.rank(), (s,), d, repetition), op=hvd.Sum, name=f"fuse.{s}.{d}")
                for s, d in cases
            ]
            for handle, (size, dtype) in zip(handles, cases, strict=True):
                expected = reduced(of_all(rank_count, (size,), dtype, repetition), hvd.Sum)
                check(hvd.synchronize(handle), expected, f"{threshold} {size} {dtype}")
    core.set_fusion_threshold(128 << 20)


@ranks(2, 3)
def test_names_with_any_characters(rank_count):
    for name in ('quo"te', "tab\tnew\nline", "ünïcode 名前 🙂", "a/b\\c", " ", "x" * 5000):
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=name).tolist() == [rank_count] * 2


@ranks(2)
def test_average_argument(rank_count):
    own = torch.full((2,), float(hvd.rank() + 1))
    with pytest.warns(DeprecationWarning):
        assert hvd.allreduce(own, average=True).tolist() == [1.5, 1.5]
    with pytest.warns(DeprecationWarning):
        assert hvd.allreduce(own, average=False).tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(own, average=True, op=hvd.Sum)


@ranks(2)
def test_compression(rank_count):
    own = torch.tensor([1.0, 1e-9, 3.0], dtype=torch.float64) * (hvd.rank() + 1)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
        result = hvd.allreduce(own, compression=compression)
        assert result.dtype == torch.float64
        assert result[[0, 2]].tolist() == [1.5, 4.5]
    whole = hvd.allreduce(torch.tensor([70000]), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert whole.tolist() == [140000]


@ranks(2, 4)
def test_adasum(rank_count):
    """Equal vectors are averaged, orthogonal ones added."""
    same = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(hvd.allreduce(same, op=hvd.Adasum), same)
    axis = torch.zeros(rank_count)
    axis[hvd.rank()] = 2.0
    torch.testing.assert_close(hvd.allreduce(axis, op=hvd.Adasum), torch.full((rank_count,), 2.0))


@ranks(3)
def test_adasum_needs_a_power_of_two(rank_count):
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)


@ranks(2)
def test_tensor_freed_before_completion(rank_count):
    handles = [hvd.allreduce_async(torch.full((10000,), float(i)), op=hvd.Sum, name=f"freed.{i}") for i in range(50)]
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).sum().item() == 10000.0 * i * rank_count
    for i in range(20):  # handles that nobody asks for
        hvd.allreduce_async(torch.ones(1000), name=f"dropped.{i}")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == rank_count
