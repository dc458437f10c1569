"""Every verb on GPU tensors, against references, and that the order of streams holds without the host waiting."""

import os
import time

import pytest
import torch
from gpu import busy, needs_gpu, own_gpu
from ranks import ranks
from references import FLOATS, INTEGERS, check, of_all, reduced, values

import sirtaki.torch as hvd

pytestmark = needs_gpu
ALL_DTYPES = (*FLOATS, *INTEGERS, torch.bool)


def same(result: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    assert result.is_cuda, what
    check(result.cpu(), expected, what)


@ranks(1, 2, 4)
def test_gpu_allreduce_of_every_dtype_and_op(rank_count):
    gpu = own_gpu()
    for dtype in ALL_DTYPES:
        parts = of_all(rank_count, (1003,), dtype)
        own = parts[hvd.rank()].to(gpu)
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            if dtype == torch.bool and op == hvd.Average:
                continue
            name = f"{dtype}.{int(op)}"
            same(hvd.allreduce(own, op=op, name=name), reduced(parts, op), name)
        same(own, parts[hvd.rank()])
    for pre, post in ((0.5, 1.0), (1.0, 1 / 3), (3.0, 0.25)):
        for dtype in (*FLOATS, torch.int32, torch.int8):
            own = torch.full((50,), hvd.rank() + 2.0).to(dtype).to(gpu)
            result = hvd.allreduce(own, op=hvd.Sum, name=f"s.{dtype}.{pre}", prescale_factor=pre, postscale_factor=post)
            wide = [torch.full((50,), rank + 2.0, dtype=torch.float64) * pre for rank in range(rank_count)]
            if not dtype.is_floating_point:
                wide = [part.trunc() for part in wide]
            expected = sum(wide) * post
            same(result, (expected if dtype.is_floating_point else expected.trunc()).to(dtype), f"{dtype} {pre} {post}")


@ranks(1, 2, 4)
def test_gpu_many_tensors_at_once(rank_count):
    gpu = own_gpu()
    shapes = [(), (0,), (7,), (64, 64), (3, 5, 7), (1_500_007,), *[(100 + i,) for i in range(300)]]
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        parts = [of_all(rank_count, shape, dtype, i) for i, shape in enumerate(shapes)]
        handles = [
            hvd.allreduce_async(part[hvd.rank()].to(gpu), op=hvd.Sum, name=f"{dtype}.{i}")
            for i, part in enumerate(parts)
        ]
        for i, handle in enumerate(handles):
            same(hvd.synchronize(handle), reduced(parts[i], hvd.Sum), f"{dtype} {shapes[i]}")
    mixed = [values(hvd.rank(), (9,), dtype) for dtype in (torch.float32, torch.int8, torch.float64)]
    for tensor, result in zip(mixed, hvd.grouped_allreduce([t.to(gpu) for t in mixed], op=hvd.Sum), strict=True):
        same(result, reduced(of_all(rank_count, (9,), tensor.dtype), hvd.Sum))
    if rank_count == 2:
        adasum = hvd.allreduce(torch.ones(5, device=gpu), op=hvd.Adasum)
        same(adasum, torch.ones(5), "Adasum of equal vectors")


@ranks(1, 2, 4)
def test_gpu_other_verbs(rank_count):
    gpu = own_gpu()
    rank = hvd.rank()
    for dtype in ALL_DTYPES:
        for rows in (lambda r: r + 1, lambda r: r, lambda r: 4):
            parts = [values(r, (rows(r), 3), dtype) for r in range(rank_count)]
            same(hvd.allgather(parts[rank].to(gpu), name=f"gather.{dtype}"), torch.cat(parts), str(dtype))
        root = rank_count - 1
        for shape in ((), (0,), (500_003,)):
            own = values(rank, shape, dtype).to(gpu)
            same(hvd.broadcast(own, root, name=f"b.{dtype}.{shape}"), values(root, shape, dtype))
            same(own, values(rank, shape, dtype))
        splits = [rank + to + 1 for to in range(rank_count)]
        sent = [values(r, (sum(r + to + 1 for to in range(rank_count)), 2), dtype) for r in range(rank_count)]
        got, received = hvd.alltoall(
            sent[rank].to(gpu), torch.tensor(splits, dtype=torch.int32), name=f"exchange.{dtype}"
        )
        starts = [sum(r + to + 1 for to in range(rank)) for r in range(rank_count)]
        expected = [
            part[start : start + r + rank + 1] for r, (part, start) in enumerate(zip(sent, starts, strict=True))
        ]
        same(got, torch.cat(expected), str(dtype))
        assert received.tolist() == [r + rank + 1 for r in range(rank_count)]
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        for rows in (2 * rank_count, 2 * rank_count + 1):
            parts = of_all(rank_count, (rows, 700), dtype)
            result = hvd.reducescatter(parts[rank].to(gpu), op=hvd.Sum, name=f"scatter.{dtype}.{rows}")
            begin = sum(rows // rank_count + (r < rows % rank_count) for r in range(rank))
            same(result, reduced(parts, hvd.Sum)[begin : begin + result.shape[0]], f"{dtype} {rows}")


@ranks(1, 2, 4)
def test_gpu_order_of_streams(rank_count):
    gpu = own_gpu()
    torch.ones(1, device=gpu).sum().item()
    side = torch.cuda.Stream()
    by_mpi = os.environ.get("SIRTAKI_GPU_OPERATIONS") == "mpi"
    for stream in (torch.cuda.default_stream(), side):
        with torch.cuda.stream(stream):
            tensors = [torch.zeros(1000 + i, device=gpu) for i in range(20)]
            hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="warm")
            stream.synchronize()
            busy(200)
            began = time.perf_counter()
            for tensor in tensors:
                tensor.fill_(hvd.rank() + 1)
            handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"late.{i}") for i, t in enumerate(tensors)]
            on_host = rank_count > 1 and (by_mpi or torch.cuda.device_count() < rank_count)
            totals = [hvd.synchronize(handle).sum() for handle in handles]
            if not on_host:  # by NCCL nothing waits for the GPU
                assert not stream.query(), f"the host waited {time.perf_counter() - began:.3f} s for the GPU"
            expected = sum(range(1, rank_count + 1))
            assert [t.item() for t in totals] == [expected * (1000 + i) for i in range(20)]
    # What nobody waits for is let go of, and its memory is not used again before the GPU has done with it.
    kept = torch.full((1 << 20,), float(hvd.rank()), device=gpu)
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        busy(20)
        for i in range(5):
            hvd.allreduce_async(kept * 2, op=hvd.Sum, name=f"dropped.{i}")
        outputs = [hvd.allgather(kept[: 1 << 18], name=f"gather.{i}") for i in range(3)]
        junk = [torch.full((1 << 20,), -1.0, device=gpu) for _ in range(10)]
    side.synchronize()
    assert all(output[-1].item() == rank_count - 1 for output in outputs)
    assert all(tensor.max().item() == -1 for tensor in junk)
    assert kept.sum().item() == hvd.rank() * (1 << 20)


@ranks(2)
def test_gpu_errors_name_devices(rank_count):
    gpu = own_gpu()
    where = gpu if hvd.rank() == 0 else torch.device("cpu")
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(2, device=where), name="split")
    assert "device differs" in str(caught.value) and "gpu:0" in str(caught.value) and " cpu" in str(caught.value)
    with pytest.raises(hvd.HorovodInternalError, match="one device"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2, device=gpu)])
    graph = torch.cuda.CUDAGraph()
    tensor = torch.ones(2, device=gpu)
    with torch.cuda.graph(graph), pytest.raises(hvd.HorovodInternalError, match="captured into a CUDA graph"):
        hvd.allreduce(tensor, name="in a capture")
    if torch.cuda.device_count() > 1:
        hvd.allreduce(tensor, name="first gpu")
        with pytest.raises(hvd.HorovodInternalError, match="a rank uses one GPU"):
            hvd.allreduce(torch.ones(2, device=torch.device("cuda", 1 - gpu.index)), name="second gpu")
    assert hvd.allreduce(tensor, name="goes on", op=hvd.Sum).tolist() == [2.0, 2.0]


@ranks(2)
def test_gpu_join(rank_count):
    gpu = own_gpu()
    tensors = [torch.ones(4, device=gpu), torch.ones(400_000, device=gpu)]
    for step in range(2 + hvd.rank()):
        handles = [hvd.allreduce_async(t, op=hvd.Sum, name=f"{i}") for i, t in enumerate(tensors)]
        present = 2 if step < 2 else 1
        assert [hvd.synchronize(h)[-1].item() for h in handles] == [present, present]
        average = hvd.allreduce(tensors[0], name="average")
        assert average.tolist() == [1.0] * 4
    assert hvd.join() == 1
