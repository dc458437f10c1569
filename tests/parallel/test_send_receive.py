"""send, recv, isend, irecv, batches of them; sets made by their members; gather, scatter, reduce."""

import jobs
import pytest
import torch
from ranks import ranks
from references import FLOATS, INTEGERS

import sirtaki.torch as hvd

EAGER, LARGE = 100, 200_000  # elements


def numbered(sender, receiver, number, length, dtype=torch.float32):
    return torch.arange(length).add(100 * sender + 10 * receiver + number).to(dtype)


@ranks(1, 2, 3)
def test_order_tags_and_many_outstanding(rank_count):
    own = hvd.rank()
    lengths = [EAGER, LARGE, 0, 1] * 3
    sent, received = [], {}
    for peer in range(rank_count):
        for number, length in enumerate(lengths):
            sent.append(hvd.isend(numbered(own, peer, number, length), peer, tag=number % 2))
    for peer in reversed(range(rank_count)):
        for tag in (1, 0):
            for number in range(tag, len(lengths), 2):
                received[peer, number] = hvd.irecv(torch.empty(lengths[number]), peer, tag=tag)
    for (peer, number), handle in received.items():
        result = hvd.synchronize(handle)
        assert torch.equal(result, numbered(peer, own, number, lengths[number])), (peer, number)
    for handle in sent:
        assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="not pending"):
        hvd.poll(sent[0])


@ranks(2)
def test_dtypes_and_blocking_calls(rank_count):
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
        value = numbered(0, 1, 0, 5, dtype)
        if hvd.rank() == 0:
            hvd.send(value, dst=1)
        else:
            target = torch.zeros(5, dtype=dtype)
            assert hvd.recv(target, src=0) is target
            assert torch.equal(target, value), dtype


@ranks(2, 3)
def test_a_batch_and_a_ring_beside_gradients(rank_count):
    own = hvd.rank()
    to, source = (own + 1) % rank_count, (own - 1) % rank_count
    model = torch.nn.Linear(4, 4)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(12):
        target = torch.empty(LARGE if step % 2 else EAGER)
        value = numbered(own, to, step, len(target))
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), float(own + step))).sum()
        handles = hvd.batch_isend_irecv([hvd.P2POp(hvd.irecv, target, source), hvd.P2POp(hvd.isend, value, to)])
        loss.backward()
        assert hvd.synchronize(handles[0]) is target
        hvd.synchronize(handles[1])
        optimizer.step()
        assert torch.equal(target, numbered(source, own, step, len(target)))
        assert torch.equal(model.weight.grad, torch.full((4, 4), 2 * ((rank_count - 1) / 2 + step)))


@ranks(2)
def test_misfits_are_refused_on_both_ends(rank_count):
    own, other = hvd.rank(), 1 - hvd.rank()
    cases = [
        (torch.ones(3), torch.zeros(2), r"float32 \(3,\) \(12 bytes\) at .*, but rank 1 receives float32 \(2,\)"),
        (torch.ones(LARGE), torch.zeros(3), rf"float32 \({LARGE},\)"),
        (torch.ones(2), torch.zeros(2, dtype=torch.int32), "but rank 1 receives int32"),
    ]
    for sent, target, text in cases:
        with pytest.raises(hvd.HorovodInternalError, match=f"rank 0 sends to rank 1 with tag 5 .*{text}"):
            hvd.send(sent, other, tag=5) if own == 0 else hvd.recv(target, other, tag=5)
        assert not target.any()
    for wrong in (-1, 2, True, 0.0):
        with pytest.raises(ValueError, match="dst must"):
            hvd.isend(torch.ones(1), wrong)
    with pytest.raises(ValueError, match="tag must lie in"):
        hvd.irecv(torch.ones(1), other, tag=2**31 - 1)
    with pytest.raises(ValueError, match="op must be isend or irecv"):
        hvd.P2POp(hvd.send, torch.ones(1), other)
    with pytest.raises(ValueError, match="takes P2POp objects"):
        hvd.batch_isend_irecv([torch.ones(1)])


@ranks(3)
def test_sets_made_by_their_members(rank_count):
    own = hvd.rank()
    if own != 1:
        ends = hvd.add_process_set([2, 0], members_only=True)
        assert (ends.ranks, ends.size(), ends.rank()) == ([0, 2], 2, own // 2)
        for step in range(5):
            result = hvd.allreduce(torch.tensor([own + step]), op=hvd.Sum, process_set=ends, name="members")
            assert result.tolist() == [2 + 2 * step]
        again = hvd.add_process_set([0, 2], members_only=True)
        assert again.process_set_id != ends.process_set_id
        other = 2 - own
        handle = hvd.isend(torch.tensor([own]), other, process_set=again)
        assert hvd.recv(torch.tensor([9]), other, process_set=again).tolist() == [other]
        hvd.synchronize(handle)
        with pytest.raises(ValueError, match="rank 1 is not among ranks 0, 2"):
            hvd.send(torch.ones(1), 1, process_set=ends)
        assert hvd.remove_process_set(ends) and hvd.remove_process_set(again)
    else:
        with pytest.raises(ValueError, match=r"only members may call with members_only, not rank 1 for \[0, 2\]"):
            hvd.add_process_set([0, 2], members_only=True)
    neighbours = {0: [[0, 1]], 1: [[0, 1], [1, 2]], 2: [[1, 2]]}
    for members in neighbours[own]:
        pair = hvd.add_process_set(members, members_only=True)
        assert hvd.allgather(torch.tensor([own]), process_set=pair).tolist() == members
        hvd.remove_process_set(pair)
    everyone = hvd.add_process_set(range(3), members_only=True)
    assert hvd.broadcast(torch.tensor(own), 2, process_set=everyone).item() == 2
    hvd.remove_process_set(everyone)


@ranks(3)
def test_members_that_pass_different_ranks(rank_count):
    """The first member compares; the third one, which comes late, gets the same error."""
    passed = {0: [0, 1, 2], 1: [0, 1], 2: [0, 1, 2]}[hvd.rank()]
    text = r"members must pass the same ranks, rank 0 passed \[0, 1, 2\], rank 1 \[0, 1\]"
    if hvd.rank() == 2:
        hvd.recv(torch.zeros(1), src=1)
    with pytest.raises(ValueError, match=text):
        hvd.add_process_set(passed, members_only=True)
    if hvd.rank() == 1:
        hvd.send(torch.zeros(1), dst=2)
    everyone = hvd.add_process_set([0, 1, 2], members_only=True)
    hvd.remove_process_set(everyone)


@ranks(1, 2, 3)
def test_gather_scatter_reduce(rank_count):
    own, root = hvd.rank(), rank_count - 1
    parts = [numbered(rank, 0, 0, 2 * (rank + 1)).view(-1, 2) for rank in range(rank_count)]
    for name in (None, "named"):
        gathered = hvd.gather(parts[own], root, name=name)
        assert torch.equal(gathered, torch.cat(parts) if own == root else torch.empty(0, 2))
        given = torch.cat(parts) if own == root else torch.empty(0, 2)
        scattered = hvd.scatter(given, root, splits=[rank + 1 for rank in range(rank_count)], name=name)
        assert torch.equal(scattered, parts[own])
        even = hvd.scatter(torch.arange(2 * rank_count) if own == root else torch.empty(0, dtype=torch.int64), root)
        assert even.tolist() == [2 * own, 2 * own + 1]
        summed = hvd.reduce(torch.tensor([float(own)]), root, op=hvd.Sum, name=name)
        assert (summed is None) == (own != root)
        assert summed is None or summed.item() == sum(range(rank_count))
    with pytest.raises(ValueError, match="is not among the ranks"):
        hvd.gather(parts[own], rank_count)
    with pytest.raises(ValueError, match="needs a tensor with at least one dimension"):
        hvd.scatter(torch.tensor(1), root)
    if own == root and rank_count > 1:
        with pytest.raises(ValueError, match="rows cannot be divided into"):
            hvd.scatter(torch.arange(2 * rank_count + 1), root)


# Without torch, whose import takes most of a job's time.
START = """import time, sirtaki as hvd
from sirtaki.exchange import start_transfer
hvd.init()
rank = hvd.rank()
"""
QUICK = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "4"}


@pytest.mark.parametrize("operations", ["shm", "mpi"])
def test_a_rank_that_ends_early(operations):
    """A wait for it ends with an error that says so. An unmatched receive does not hold up the end."""
    body = """
if rank == 1:
    unmatched = start_transfer("receive", bytearray(4), 0, 3)
else:
    for verb, length in (("receive", 4), ("send", 10**6)):
        try:
            start_transfer(verb, bytearray(length), 1, 0).wait()
        except hvd.SirtakiInternalError as error:
            print(f"rank {rank} got {error}", flush=True)
hvd.shutdown()
"""
    ended = jobs.run_script(2, START + body, 60, {**QUICK, "SIRTAKI_CPU_OPERATIONS": operations})
    assert ended.code == 0, ended.output
    for title in ("receive from rank 1, tag 0", "send to rank 1, tag 0"):
        assert f"rank 0 got '{title}' cannot complete: rank 1 has left" in ended.output, ended.output


def test_a_receive_that_nothing_comes_for():
    """The stall watch names the receive and the rank; the waiting rank uses no processor time."""
    body = """
if rank == 0:
    used = time.process_time()
    try:
        start_transfer("receive", bytearray(4), 1, 7).wait()
    except hvd.SirtakiInternalError:
        print("used", time.process_time() - used < 1, flush=True)
        raise
time.sleep(60)
"""
    ended = jobs.run_script(2, START + body, 60, QUICK)
    assert ended.code not in (0, None), ended.output
    assert "'receive from rank 1, tag 7' has waited" in ended.output, ended.output
    assert "lacks rank 1" in ended.output and "used True" in ended.output, ended.output


@ranks(2)
def test_a_batch_with_a_wrong_call_begins_nothing(rank_count):
    """Else the first receive would take what is sent next."""
    own, other = hvd.rank(), 1 - hvd.rank()
    stale = torch.full((1,), -1.0)
    for wrong in (hvd.P2POp(hvd.isend, torch.ones(1), 7), hvd.P2POp(hvd.isend, torch.ones(1), other, tag=-1)):
        with pytest.raises(ValueError, match="must lie in"):
            hvd.batch_isend_irecv([hvd.P2POp(hvd.irecv, stale, other), wrong])
    place = torch.zeros(1)
    operations = [hvd.P2POp(hvd.irecv, place, other), hvd.P2POp(hvd.isend, torch.full((1,), 5.0 + own), other)]
    for handle in hvd.batch_isend_irecv(operations):
        hvd.synchronize(handle)
    assert place.item() == 5 + other and stale.item() == -1


@ranks(2)
def test_other_roots_are_an_error(rank_count):
    own = hvd.rank()
    for call in (hvd.gather, hvd.scatter, hvd.reduce):
        with pytest.raises(hvd.HorovodInternalError, match="root rank"):
            call(torch.ones(2), root_rank=own, name=f"{call.__name__} with two roots")
