"""Checkpoints of a sharded optimizer: the plain format of torch, on any number of ranks."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from ranks import ranks
from sharded_training import SmallNet, adamw, check_same_bits, data, distributed, sgd, sharded, train

import sirtaki.torch as hvd


@ranks(1, 2, 3)
@pytest.mark.parametrize("make", (adamw, sgd))
def test_plain_format_into_a_plain_optimizer_and_back(rank_count, make):
    """The whole state equals that of the optimizer without sharding; a resumed training goes on with the same bits."""
    model, expected = SmallNet(), SmallNet()
    optimizer, plain = sharded(model, make), distributed(expected, make)
    train(model, optimizer, range(5))
    train(expected, plain, range(5))
    saved, reference = optimizer.state_dict(), plain.state_dict()
    if hvd.rank() != 0:
        assert saved["state"] == {} and saved["sirtaki_state_is_on_rank"] == 0
        with pytest.raises(ValueError, match="gives the whole state to rank 0 only"):
            optimizer.load_state_dict(saved)
    else:
        check_same_state(saved, reference)
        if hvd.size() > 1:
            with pytest.raises(ValueError, match=r"load_state_dict on rank 1: this state_dict has no state"):
                optimizer.load_state_dict(saved)
    saved = hvd.broadcast_object(saved)

    into_plain, into_sharded = SmallNet(), SmallNet()
    into_plain.load_state_dict(model.state_dict())
    into_sharded.load_state_dict(model.state_dict())
    plain_again = distributed(into_plain, make)
    plain_again.load_state_dict(copy.deepcopy(saved))
    sharded_again = sharded(into_sharded, make)
    sharded_again.load_state_dict(saved)
    hvd.broadcast_optimizer_state(sharded_again, root_rank=0)  # programs do so; nothing is lost
    for net, resumed in ((expected, plain), (into_plain, plain_again), (into_sharded, sharded_again)):
        train(net, resumed, range(5, 10))
    check_same_bits(into_plain, expected)
    check_same_bits(into_sharded, expected)


def check_same_state(saved, expected):
    assert saved["param_groups"] == expected["param_groups"]
    assert saved["state"].keys() == expected["state"].keys()
    for number, entries in expected["state"].items():
        assert saved["state"][number].keys() == entries.keys()
        for key, value in entries.items():
            assert value is None or torch.equal(saved["state"][number][key], value), (number, key)


@ranks(3)
def test_resume_on_fewer_ranks(rank_count):
    """From three ranks to two and one, and back to three; every rank has the same data, so their number is all that
    differs.
    """

    def steps(model, optimizer, numbers):
        for step in numbers:
            optimizer.zero_grad()
            model(data(step, rank=0)).square().mean().backward()
            optimizer.step()

    two, one = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
    expected, model = SmallNet(), SmallNet()
    steps(expected, adamw(expected), range(9))
    optimizer = sharded(model)
    steps(model, optimizer, range(3))
    for process_set in (two if hvd.rank() < 2 else one, hvd.global_process_set):
        group = optimizer._distributed.options.process_set
        saved = hvd.broadcast_object(optimizer.state_dict(), group.ranks[0], process_set=group)
        model = copy.deepcopy(model)
        optimizer = sharded(model, process_set=process_set)
        optimizer.load_state_dict(saved)
        steps(model, optimizer, range(3, 6) if process_set is not hvd.global_process_set else range(6, 9))
    for (name, one_of_them), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one_of_them, other, rtol=1e-4, atol=1e-5), name
    hvd.remove_process_set(two)
    hvd.remove_process_set(one)


@ranks(2)
def test_states_made_before_the_optimizer_was_sharded(rank_count):
    """Adagrad has state from the beginning, and a checkpoint may be loaded first."""

    def adagrad(model):
        return torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.5)

    def loaded(model):
        optimizer = sgd(model)
        optimizer.load_state_dict(saved)
        return optimizer

    model, expected = SmallNet(), SmallNet()
    train(model, sharded(model, adagrad), range(3))
    train(expected, distributed(expected, adagrad), range(3))
    check_same_bits(model, expected)

    first = SmallNet()
    optimizer = distributed(first, sgd)
    train(first, optimizer, range(3))
    saved = optimizer.state_dict()
    model, expected = copy.deepcopy(first), copy.deepcopy(first)
    train(model, sharded(model, loaded), range(3, 6))
    train(expected, distributed(expected, loaded), range(3, 6))
    check_same_bits(model, expected)


@ranks(2)
def test_wrong_state_dicts_are_refused_on_all_ranks(rank_count):
    model = SmallNet()
    optimizer = sharded(model)
    train(model, optimizer, range(2))
    saved = hvd.broadcast_object(optimizer.state_dict())

    def check(given, message):
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(given)

    mine = hvd.rank() == 1
    check("nothing", "load_state_dict on rank 0: a state_dict has 'state' and 'param_groups', got str nothing")
    check({} if mine else saved, "load_state_dict on rank 1: a state_dict has")
    one_group = {**saved, "param_groups": saved["param_groups"][:1]}
    check(one_group, r"has groups of \[4\] parameters, the optimizer has groups of \[4, 7\]")
    other_shape = copy.deepcopy(saved)
    other_shape["state"][0]["exp_avg"] = torch.zeros(3, 4)
    check(other_shape, r"exp_avg of shape \(3, 4\) for first.weight, whose shape is \(65, 37\)")
    changed = copy.deepcopy(saved)
    changed["state"][1]["exp_avg"] += hvd.rank()
    check(changed, "load_state_dict got another state on rank 1 than on rank 0")
    with pytest.raises(TypeError, match="cannot be copied or pickled; use state_dict"):
        copy.deepcopy(optimizer)
    train(model, optimizer, range(2, 4))  # nothing has changed
    expected = SmallNet()
    train(expected, distributed(expected), range(4))
    check_same_bits(model, expected)


@ranks(3)
def test_distributed_checkpoint(rank_count, tmp_path_factory):
    """Written by three ranks, each its part; read by a group of two, and by one rank alone."""
    folder = hvd.broadcast_object(str(tmp_path_factory.mktemp("checkpoint")))
    model = SmallNet(torch.bfloat16)
    optimizer = sharded(model)
    train(model, optimizer, range(4))
    two = hvd.add_process_set([0, 1])
    torch.distributed.init_process_group("sirtaki")
    checkpoint.save({"optimizer": optimizer.sharded_state_dict()}, checkpoint_id=folder)
    expected = hvd.broadcast_object(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.5

    again = copy.deepcopy(model)
    resumed = sharded(again, process_set=two)  # rank 2 is not in it, and has its own whole state
    whole = {"optimizer": resumed.sharded_state_dict()}
    checkpoint.load(whole, checkpoint_id=folder, planner=checkpoint.DefaultLoadPlanner(allow_partial_load=True))
    resumed.load_sharded_state_dict(whole["optimizer"])
    torch.distributed.destroy_process_group()
    loaded = resumed.state_dict()
    assert loaded["param_groups"][0]["lr"] == expected["param_groups"][0]["lr"] == 1e-2
    if hvd.rank() != 1:
        # A parameter without gradients has a state only because it was made for loading.
        never = [id(p) for group in resumed.param_groups for p in group["params"]].index(id(again.never))
        assert not any(value.any() for key, value in loaded["state"].pop(never).items() if key.startswith("exp"))
        expected["state"].pop(never, None)
        check_same_state(loaded, expected)
    with pytest.raises(RuntimeError, match="needs all elements, but this rank has only a part"):
        optimizer.sharded_state_dict()["state"]["first.weight"]["exp_avg"].sum()
    hvd.remove_process_set(two)
