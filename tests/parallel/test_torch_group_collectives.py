"""Every collective of torch.distributed over Sirtaki gives what gloo gives."""

import pytest
import torch
import torch.distributed as dist
from ranks import ranks
from torch_groups import groups, of_rank, same

import sirtaki.torch as hvd

on_ranks = ranks(2, 3)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)


def both(call, *tensors, group):
    """call(group, *tensors) on copies, over Sirtaki and over gloo: the tensors afterwards, or what it returns."""
    results = []
    for where in (None, group):
        copies = [tensor.clone() for tensor in tensors]
        returned = call(where, *copies)
        results.append(copies if returned is None else list(returned))
    return zip(*results, strict=True)


def check(call, *tensors, group):
    for ours, theirs in both(call, *tensors, group=group):
        same(ours, theirs)


@on_ranks
def test_allreduce(rank_count):
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)
    bits = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
    with groups() as gloo:
        for dtype in (*FLOATS, *INTEGERS):
            for op in ops + (() if dtype.is_floating_point else bits):
                check(lambda g, x, op=op: dist.all_reduce(x, op, group=g), of_rank(5, 3, dtype=dtype), group=gloo)
        assert dist.get_backend() == "sirtaki"
        total = torch.full((4,), hvd.rank() + 1.0, dtype=torch.float64)
        dist.all_reduce(total, dist.ReduceOp.AVG)  # gloo has none
        assert total.tolist() == [(rank_count + 1) / 2] * 4
        some = torch.tensor([hvd.rank() == 0, False, True])
        dist.all_reduce(some, dist.ReduceOp.MAX)
        assert some.tolist() == [True, False, True]
        scaled = torch.ones(3)
        dist.all_reduce(scaled, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
        assert scaled.tolist() == [rank_count / 2] * 3
        pair = torch.tensor([1 + 2j, 3 - 1j]) * (hvd.rank() + 1)
        check(lambda g, x: dist.all_reduce(x, group=g), pair, group=gloo)


@on_ranks
def test_tensors_that_are_not_contiguous(rank_count):
    with groups() as gloo:
        for view in (lambda x: x.t(), lambda x: x[:, ::2]):
            ours, theirs = (of_rank(4, 6) for _ in range(2))
            dist.all_reduce(view(ours))
            plain = view(theirs).contiguous()
            dist.all_reduce(plain, group=gloo)
            same(view(ours), plain)
        rows = torch.empty(rank_count, 6, 4).transpose(1, 2)
        dist.all_gather_into_tensor(rows, (torch.arange(24.0) + hvd.rank()).view(6, 4).t())
        assert torch.equal(rows[rank_count - 1], (torch.arange(24.0) + rank_count - 1).view(6, 4).t())


@on_ranks
def test_broadcast_and_reduce(rank_count):
    with groups() as gloo:
        for root in range(rank_count):
            for dtype in (torch.bool, torch.float16, torch.int64):
                check(lambda g, x, root=root: dist.broadcast(x, root, group=g), of_rank(3, dtype=dtype), group=gloo)
            tensor, expected = of_rank(3), of_rank(3)
            dist.reduce(tensor, root)
            dist.all_reduce(expected, group=gloo)
            same(tensor, expected if hvd.rank() == root else of_rank(3))


@on_ranks
def test_gathering(rank_count):
    def into_list(group, x):
        parts = [torch.empty_like(x) for _ in range(rank_count)]
        dist.all_gather(parts, x, group=group)
        return parts

    def into_tensor(group, x):
        rows = x.new_empty(rank_count * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(rows, x, group=group)
        return [rows]

    def on_root(group, x):
        parts = [torch.empty_like(x) for _ in range(rank_count)] if hvd.rank() == rank_count - 1 else None
        dist.gather(x, parts, dst=rank_count - 1, group=group)
        return parts or []

    with groups() as gloo:
        for call in (into_list, into_tensor, on_root):
            for dtype in (torch.float64, torch.bfloat16, torch.int8, torch.bool):
                check(call, of_rank(2, 3, dtype=dtype), group=gloo)
            check(call, torch.empty(0, 3), group=gloo)
        own = torch.zeros(rank_count, 2)  # as FSDP: the input is a part of the output
        own[hvd.rank()] = hvd.rank() + 1.0
        dist.all_gather_into_tensor(own, own[hvd.rank()])
        assert own.tolist() == [[rank + 1.0] * 2 for rank in range(rank_count)]


@on_ranks
def test_scattering(rank_count):
    def from_root(group, x):
        part = torch.empty_like(x[0])
        dist.scatter(part, list(x) if hvd.rank() == 0 else None, src=0, group=group)
        return [part]

    def summed_list(group, x):
        part = torch.empty_like(x[0])
        dist.reduce_scatter(part, list(x), group=group)
        return [part]

    def summed(group, x):
        part = torch.empty_like(x[0])
        dist.reduce_scatter_tensor(part, x.flatten(0, 1), group=group)
        return [part]

    with groups() as gloo:
        for call in (from_root, summed_list, summed):
            for dtype in (torch.float64, torch.float16, torch.int32):
                check(call, of_rank(rank_count, 2, 3, dtype=dtype), group=gloo)


@on_ranks
def test_all_to_all(rank_count):
    def equal(group, x):
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x, group=group)
        return [result]

    def unequal(group, x):
        rank = hvd.rank()
        result = x.new_empty(sum(rank + sender for sender in range(rank_count)), *x.shape[1:])
        sent = [rank + receiver for receiver in range(rank_count)]
        dist.all_to_all_single(result, x, [rank + sender for sender in range(rank_count)], sent, group=group)
        return [result]

    with groups() as gloo:
        check(equal, of_rank(2 * rank_count, 3), group=gloo)
        check(equal, of_rank(rank_count, dtype=torch.int64), group=gloo)
        check(unequal, of_rank(sum(hvd.rank() + other for other in range(rank_count)), 2), group=gloo)
        parts = [torch.empty(rank + 1) for rank in range(rank_count)]  # gloo has no form with lists
        sent = [torch.full((hvd.rank() + 1,), 10.0 * hvd.rank() + rank) for rank in range(rank_count)]
        dist.all_to_all(parts, sent)
        assert [part.tolist() for part in parts] == [[10.0 * r + hvd.rank()] * (r + 1) for r in range(rank_count)]


@on_ranks
def test_coalesced_calls(rank_count):
    with groups():
        tensors = [torch.full((size,), hvd.rank() + 1.0) for size in (1, 5, 3)]
        with dist._coalescing_manager() as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        total = sum(range(1, rank_count + 1))
        assert [tensor.tolist() for tensor in tensors] == [[total] * size for size in (1, 5, 3)]
        rows = [torch.empty(rank_count, 2) for _ in range(2)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for number, output in enumerate(rows):
                dist.all_gather_into_tensor(output, torch.full((2,), 10.0 * number + hvd.rank()))
        manager.wait()
        for number, output in enumerate(rows):
            assert output[:, 0].tolist() == [10.0 * number + rank for rank in range(rank_count)]
        sums = [torch.empty(2) for _ in range(2)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for number, output in enumerate(sums):
                dist.reduce_scatter_tensor(output, torch.full((2 * rank_count,), float(number)))
        manager.wait()
        assert [part.tolist() for part in sums] == [[0.0, 0.0], [rank_count, rank_count]]


@on_ranks
def test_objects_and_barriers(rank_count):
    with groups():
        everything = [None] * rank_count
        dist.all_gather_object(everything, {"rank": hvd.rank(), "text": "x" * hvd.rank()})
        assert everything == [{"rank": rank, "text": "x" * rank} for rank in range(rank_count)]
        one = [("from", hvd.rank())]
        dist.broadcast_object_list(one, src=rank_count - 1)
        assert one == [("from", rank_count - 1)]
        collected = [None] * rank_count if hvd.rank() == 0 else None
        dist.gather_object(hvd.rank(), collected)
        assert collected == (list(range(rank_count)) if hvd.rank() == 0 else None)
        dist.barrier()
        dist.barrier(async_op=True).wait()
        dist.group.WORLD.monitored_barrier()


@ranks(2)
def test_arguments_are_refused(rank_count):
    with groups():
        for call, text in (
            (lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(2)), "2 times the elements of the input"),
            (lambda: dist.all_gather([torch.empty(2), torch.empty(3)], torch.empty(2)), "2 tensors of 2 elements"),
            (lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3)), "equal parts among 2 ranks"),
            (lambda: dist.all_reduce(torch.empty(2), torch.distributed.ReduceOp.BAND), "bitwise_and"),
            (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "dense tensors here, got layout torch.sparse_coo"),
        ):
            with pytest.raises((ValueError, NotImplementedError, RuntimeError), match=text):
                call()
                dist.barrier()
