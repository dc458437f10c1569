"""checkpoint() and latest() of torch: any number of ranks, sharded optimizers, errors of all ranks."""

import argparse
import os

import pytest
import torch
from ranks import ranks
from sharded_training import SmallNet, adamw, check_same_bits, sharded, train

import sirtaki.torch as hvd
from sirtaki.checkpoints import saving
from sirtaki.torch.checkpoints import _dumped


def state_of(model, optimizer, step):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def shared(tmp_path):
    """One folder for all ranks."""
    return hvd.broadcast_object(str(tmp_path))


@ranks(1, 2, 3)
def test_training_goes_on_from_the_latest(rank_count, tmp_path):
    """With the bits of a training that was not interrupted, also with a sharded optimizer."""
    folder = shared(tmp_path)
    assert hvd.latest(folder) is None
    model = SmallNet()
    optimizer = sharded(model, adamw)
    train(model, optimizer, range(4))
    hvd.checkpoint(folder, state_of(model, optimizer, 4))
    train(model, optimizer, range(4, 8))  # changes nothing in the file: the state was copied

    again = SmallNet()
    resumed = sharded(again, adamw)
    state = hvd.latest(folder)
    again.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert state["step"] == 4
    train(again, resumed, range(4, 8))
    check_same_bits(model, again)


@ranks(2)
def test_all_ranks_get_what_rank_0_wrote(rank_count, tmp_path, monkeypatch):
    """A file of several broadcasts. Other ranks need not see the folder. Shared memory of tensors stays shared."""
    folder = shared(tmp_path)
    monkeypatch.setattr(saving, "_PIECE", 1000)
    weights = torch.arange(3000.0)
    hvd.checkpoint(folder, {"rank": hvd.rank(), "weights": weights, "tied": weights, "half": weights.bfloat16()})
    state = hvd.latest(folder if hvd.rank() == 0 else "/not/there")
    assert state["rank"] == 0 and torch.equal(state["weights"], weights)
    assert state["tied"].data_ptr() == state["weights"].data_ptr() and state["half"].dtype == torch.bfloat16


@ranks(2)
def test_a_damaged_file_on_all_ranks(rank_count, tmp_path):
    folder = shared(tmp_path)
    for step in range(2):
        hvd.checkpoint(folder, {"step": step})
    saving.finish()
    if hvd.rank() == 0:
        *_, last = sorted(os.listdir(folder))
        open(os.path.join(folder, last), "wb").close()
        with pytest.warns(RuntimeWarning, match=f"{last} is damaged"):
            assert hvd.latest(folder) == {"step": 0}
        for name in os.listdir(folder):
            open(os.path.join(folder, name), "wb").close()
        with pytest.warns(RuntimeWarning), pytest.raises(OSError, match=r"no checkpoint in .* is whole"):
            hvd.latest(folder)
    else:
        assert hvd.latest(folder) == {"step": 0}
        with pytest.raises(OSError, match=r"rank 0 cannot read a checkpoint: no checkpoint in .* is whole"):
            hvd.latest(folder)


@ranks(1)
def test_a_state_that_could_not_be_loaded_is_refused(rank_count, tmp_path):
    folder = shared(tmp_path)
    with pytest.raises(
        ValueError, match=r"latest\(\) could not load this state; use tensors.*, not argparse.Namespace"
    ):
        hvd.checkpoint(folder, {"options": argparse.Namespace(lr=0.1)})
    assert os.listdir(folder) == []
    assert len(_dumped({"weights": torch.ones(1000)}).getvalue()) > 4000
