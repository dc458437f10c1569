"""TorchState, its handlers and ElasticSampler; Horovod's own expectations too."""

from __future__ import annotations

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki import elastic, process_sets, runtime
from sirtaki.elastic import membership
from sirtaki.native import core
from sirtaki.torch.elastic import handlers


@pytest.fixture
def elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the launcher sets it. Every rank starts as a newcomer."""
    monkeypatch.setenv("SIRTAKI_ELASTIC", "1")
    monkeypatch.setattr(elastic, "progress", 0)


def _model(value: float) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, value)
    return model


def _trained(value: float, steps: int = 1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = _model(value)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001 * (1 + value))
    for _ in range(steps):
        model(torch.arange(8.0).reshape(4, 2)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _flat(value: object) -> list[object]:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return [(key, _flat(entry)) for key, entry in value.items()]
    return [_flat(entry) for entry in value] if isinstance(value, (list, tuple)) else value


@ranks(2)
def test_state_is_synchronized_restored_and_committed() -> None:
    model, optimizer = _trained(float(hvd.rank()), steps=hvd.rank())
    other_model, other_optimizer = _trained(5.0)
    root_model, root_optimizer = _trained(0.0, steps=0)
    state = hvd.elastic.TorchState(model, optimizer, batch=20 + hvd.rank(), epoch=10 + hvd.rank(), seen=[1])
    before = _flat(model.state_dict())
    state.restore()  # to what it was when it was made
    assert _flat(model.state_dict()) == before
    state.sync()

    def is_root() -> bool:
        assert (state.model, state.optimizer) == (model, optimizer)
        assert _flat(model.state_dict()) == _flat(root_model.state_dict())
        assert _flat(optimizer.state_dict()) == _flat(root_optimizer.state_dict())
        return (state.batch, state.epoch, state.seen) == (20, 10, [1])

    def change() -> None:
        model.load_state_dict(other_model.state_dict())
        optimizer.load_state_dict(other_optimizer.state_dict())
        state.batch, state.epoch = 21, 11
        state.seen.append(2)

    assert is_root()
    change()
    assert (state.batch, model[0].weight[0, 0].item() > 3) == (21, True)
    state.restore()
    assert is_root()
    change()
    state.commit()
    for _ in range(2):  # the second time what was restored has been trained on
        state.restore()
        assert _flat(model.state_dict()) == _flat(other_model.state_dict())
        assert _flat(optimizer.state_dict()) == _flat(other_optimizer.state_dict())
        assert (state.batch, state.epoch, state.seen) == (21, 11, [1, 2])
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        state.seen.append(3)


@ranks(2)
def test_commits_use_their_memory_again() -> None:
    model, optimizer = _trained(1.0)
    state = hvd.elastic.TorchState(model, optimizer)

    def memory() -> list[int]:
        kept = [handler._kept._value for handler in state._handlers.values()]
        tensors = [*kept[0].values(), *(entry for slot in kept[1]["state"].values() for entry in slot.values())]
        return [tensor.data_ptr() for tensor in tensors]

    before = memory()
    assert len(before) == 7 + 3 * 4
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    state.commit()
    assert memory() == before


@ranks(2)
def test_other_model_and_values_of_every_kind() -> None:
    class Counting(torch.nn.Linear):
        count = 0

        def get_extra_state(self) -> int:
            return self.count

        def set_extra_state(self, state: int) -> None:
            self.count = state

    model = Counting(1, 1)
    state = hvd.elastic.TorchState(model=None, net=model, lr=0.5)
    assert (state.model, state.optimizer, state.lr) == (None, None, 0.5)
    model.count = 7 + hvd.rank()
    state.sync()
    assert model.count == 7
    state.net = other = Counting(1, 1)
    other.count = 3
    state.save()
    other.count = 4
    state.restore()
    assert (other.count, model.count) == (3, 7)


@ranks(2)
def test_registered_handlers() -> None:
    class Text(handlers.StateHandler):
        def save(self) -> None:
            self.kept = str(self.value)

        def restore(self) -> None:
            self.value = self.kept

        def sync(self) -> None:
            self.value = hvd.broadcast_object(self.value, self.source)

    before = hvd.elastic.get_handler_registry()
    hvd.elastic.set_handler_registry([*before, (str, Text)])
    try:
        state = hvd.elastic.TorchState(text=f"rank {hvd.rank()}", number=1)
    finally:
        hvd.elastic.set_handler_registry(before)
    assert isinstance(state._handlers["text"], Text)
    state.sync()
    assert state._handlers["text"].value == "rank 0"


@ranks(2)
def test_sharded_optimizers_are_refused() -> None:
    model = _model(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), shard_optimizer_state=True)
    with pytest.raises(ValueError, match="cannot keep an optimizer with shard_optimizer_state=True"):
        hvd.elastic.TorchState(model, optimizer)


@ranks(2, 3)
def test_sampler_divides_what_is_left(rank_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = list(range(10 * rank_count))
    sampler = hvd.elastic.ElasticSampler(dataset, shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    assert (len(sampler), sampler.state_dict()) == (10, {"epoch": 0, "processed_num": 0})
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    for batch_idx, batch in enumerate(loader):
        assert batch.tolist() == [hvd.rank() + rank_count * (2 * batch_idx + i) for i in range(2)]
        assert sampler.get_indices(batch_idx, 2) == batch.tolist()
        if batch_idx < 2:
            sampler.record_batch(batch_idx, 2)
    assert sampler.processed_num == 4 * rank_count
    state.commit()
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.processed_num) == (1, 0)
    state.restore()
    assert (sampler.epoch, sampler.processed_num, len(sampler)) == (0, 4 * rank_count, 6)
    assert [i for part in hvd.allgather_object(list(sampler)) for i in part] != dataset[4 * rank_count :]
    assert sorted(i for part in hvd.allgather_object(list(sampler)) for i in part) == dataset[4 * rank_count :]

    shares = []  # as 4 ranks see it: 6 * rank_count examples are left
    for rank in range(4):
        monkeypatch.setattr(runtime, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(runtime, "size", lambda: 4)
        state.on_reset()
        shares.append(list(sampler))
    monkeypatch.undo()
    assert {len(share) for share in shares} == {-(-6 * rank_count // 4)}
    together = [entry for step in zip(*shares, strict=True) for entry in step]
    assert together[: 6 * rank_count] == dataset[4 * rank_count :]
    assert together[6 * rank_count :] == dataset[4 * rank_count :][: -6 * rank_count % 4]


@ranks(2)
def test_sampler_shuffles_alike_on_all_ranks_and_anew_in_each_epoch() -> None:
    sampler = hvd.elastic.ElasticSampler(list(range(9)), seed=3)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        parts = hvd.allgather_object(list(sampler))
        orders.append([entry for step in zip(*parts, strict=True) for entry in step])
        assert sorted(orders[-1][:9]) == list(range(9))
        assert orders[-1][9:] == orders[-1][:1]
    assert orders[0] != orders[1]
    tiny = hvd.elastic.ElasticSampler([5], shuffle=False)
    assert list(tiny) == [0]
    tiny.record_batch(0, 1)
    tiny.reset()
    assert (list(tiny), len(tiny)) == ([], 0)


@ranks(2, 3)
def test_newest_commit_is_the_source(rank_count: int, elastic_job: None) -> None:
    """The first of the ranks with the most commits; what it has counts as a commit of all."""
    model, optimizer = _trained(float(hvd.rank()), steps=hvd.rank())
    state = hvd.elastic.TorchState(model, optimizer, owner=hvd.rank())
    elastic.progress = min(hvd.rank(), 1) * 5
    state.sync()
    assert (state.owner, elastic.progress) == (1, 5)
    model[0].weight.data.zero_()
    state.owner = 9
    state.restore()
    assert state.owner == 1
    whole = hvd.allgather(torch.cat([parameter.detach().flatten() for parameter in model.parameters()])[None])
    assert (whole == whole[0]).all()
    moments = hvd.allgather(optimizer.state_dict()["state"][0]["exp_avg"][None])
    assert moments.any() and (moments == moments[0]).all()
    state.commit()
    assert elastic.progress == 6


@ranks(2)
def test_failure_within_sync_leaves_each_rank_its_commit(elastic_job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = _trained(float(hvd.rank()))
    state = hvd.elastic.TorchState(model, optimizer, owner=hvd.rank())
    before = _flat(model.state_dict())
    elastic.progress = hvd.rank()

    def fails(*_: object) -> None:
        raise hvd.HorovodInternalError("a rank has died")

    monkeypatch.setattr(handlers, "broadcast_optimizer_state", fails)
    with pytest.raises(hvd.HorovodInternalError):
        state.sync()
    assert model[0].weight[0, 0].item() == _trained(1.0)[0][0].weight[0, 0].item(), "the model had come already"
    state.restore()
    assert (_flat(model.state_dict()), state.owner, elastic.progress) == (before, hvd.rank(), hvd.rank())


@ranks(2)
def test_optimizer_goes_on_in_the_next_job(elastic_job: None) -> None:
    """Its hooks, its number and half a step: as those of a process that has just made it."""
    model = torch.nn.Linear(1, 1, bias=False)
    make = lambda: hvd.DistributedOptimizer(  # noqa: E731
        torch.optim.SGD(model.parameters(), 0.5), model.named_parameters(), backward_passes_per_step=2
    )
    first, optimizer = make(), make()
    del first
    model(torch.ones(1, 1)).sum().backward()  # one pass of two
    is_new = hvd.rank() == 1  # as a new process
    if is_new:
        del optimizer
        model.weight.grad = None
    hvd.shutdown()
    hvd.init()
    assert model.weight.grad is None
    if is_new:
        optimizer = make()
    for _ in range(2):
        model(torch.full((1, 1), 1.0 + hvd.rank())).sum().backward()
    assert model.weight.grad.item() == 3  # averaged when backward ends
    assert optimizer._distributed.options.prefix == ""
    optimizer.step()


@ranks(3)
def test_process_sets_are_registered_again(elastic_job: None) -> None:
    evens, added, last = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 2]), hvd.ProcessSet([2])
    for entry in (evens, added, last):
        hvd.add_process_set(entry)
    hvd.remove_process_set(last)
    ids = evens.process_set_id, added.process_set_id
    gone = hvd.add_process_set([0, 1])
    gone.ranks = [1, 7]  # as if the job had been larger
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), process_set=evens)
    lost = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), process_set=gone)
    membership.reset()
    assert (evens.process_set_id, added.process_set_id, last.process_set_id) == (*ids, None)
    assert process_sets._dynamic
    if evens.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=evens).item() == 2
    with pytest.raises(ValueError, match=r"ranks=\[1, 7\].* is not registered, because this job has the ranks 0 to 2"):
        hvd.allreduce(torch.ones(1), process_set=gone)
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match=r"ranks=\[1, 7\].* is not registered, because this job has"):
            lost.step()
    del lost
    model(torch.full((1, 1), 1.0 + hvd.rank())).sum().backward()
    assert model.weight.grad.item() == 2, "the average of 1 and 3; rank 1 has its own gradient, 2"
    optimizer.step()
    assert core.process_sets()[evens.process_set_id] == [0, 2]
