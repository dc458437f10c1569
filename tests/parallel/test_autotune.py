"""The tuner in a job: it changes what travels together, on all ranks at the same step, and no number."""

import logging

import pytest
import torch
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki import settings
from sirtaki.timing import tuner
from sirtaki.torch.gradients import buckets

LARGE = 4.0  # the factor that seems to be fast


def trained(steps: int) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Parameters after the last step, and the numbers of parameters in each unit after each step."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    torch.manual_seed(hvd.rank())
    units = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        reducer = optimizer._distributed.reducer
        units.append([len(unit.slots) for unit in reducer.buckets])
    return [parameter.detach().clone() for parameter in model.parameters()], units


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setitem(buckets.BUCKET_BYTES, "cpu", 2048)


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """Steps seem to take a second, those with LARGE buckets less."""
    for name, value in (("", "1"), ("_LOG", str(tmp_path / "log.csv")), ("_WARMUP_SAMPLES", "0")):
        monkeypatch.setenv(f"SIRTAKI_AUTOTUNE{name}", value)
    monkeypatch.setenv("SIRTAKI_AUTOTUNE_STEPS_PER_SAMPLE", "1")
    real = tuner.Tuner._measured

    def measured(self):
        real(self)
        return 0.9 if self._current.bucket == LARGE else 1.0

    monkeypatch.setattr(tuner.Tuner, "_measured", measured)
    monkeypatch.setattr(tuner, "_unsaid", tuner._NOT_BEGUN)
    return tmp_path / "log.csv"


@ranks(2, 3)
def test_the_numbers_stay_and_the_buckets_change(rank_count, small_buckets, tuned, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, "sirtaki"):
        parameters, units = trained(60)
    shapes = {tuple(entry) for entry in units}
    assert len(shapes) >= 3  # buckets of the usual size, smaller and larger ones
    assert len(units[-1]) < len(units[0]) and units[-1] == units[-20]
    assert hvd.allgather_object(units, name="units") == [units] * rank_count
    if hvd.rank() == 0:
        assert caplog.text.count("autotune:") == 1 and "buckets of 4 times the usual size" in caplog.text
        assert "10.0% less time for a step" in caplog.text
        head, *lines = tuned.read_text().splitlines()
        assert head.startswith("hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,")
        assert len(lines) == 5 + 2 + 4 and all(len(line.split(",")) == len(head.split(",")) for line in lines)
    else:
        assert "autotune" not in caplog.text
    monkeypatch.setenv("SIRTAKI_AUTOTUNE", "0")
    expected, plain = trained(60)
    assert {tuple(entry) for entry in plain} == {tuple(units[0])}
    assert all(torch.equal(a, b) for a, b in zip(parameters, expected, strict=True))


@ranks(2)
def test_a_search_that_did_not_end_is_mentioned(rank_count, monkeypatch, caplog):
    monkeypatch.setenv("SIRTAKI_AUTOTUNE", "1")
    is_first = hvd.rank() == 0
    hvd.shutdown()
    for steps, said in ((0, "nothing was tried"), (2, "the job ended before the search did")):
        hvd.init()
        if steps:
            trained(steps)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "sirtaki"):
            hvd.shutdown()
        assert [said in line for line in caplog.messages if "autotune:" in line] == [True] * is_first
    monkeypatch.delenv("SIRTAKI_AUTOTUNE")
    hvd.init()


def test_settings_that_ranks_must_share(monkeypatch):
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "7")
    assert settings.tuner().agreed() == "SIRTAKI_AUTOTUNE=1 (3 + 7 steps)"
    for name, value in (("AUTOTUNE", "maybe"), ("AUTOTUNE_STEPS_PER_SAMPLE", "0"), ("AUTOTUNE_WARMUP_SAMPLES", "-1")):
        with monkeypatch.context() as patch:
            patch.setenv(f"SIRTAKI_{name}", value)
            with pytest.raises(ValueError, match=f"SIRTAKI_{name}='{value}'"):
                settings.tuner()


@ranks(2)
def test_other_bucket_sizes_after_all_was_frozen(rank_count, small_buckets):
    """Each parameter is in one bucket again."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]).double()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    x = torch.arange(8.0, dtype=torch.float64).view(2, 4)

    def step(trains: bool) -> None:
        model.requires_grad_(trains)
        optimizer.zero_grad()
        if trains:
            model(x[hvd.rank() :][:1]).sum().backward()
        optimizer.step()

    for trains in (True, True, False, True, True):
        step(trains)
    table = optimizer._distributed.reducer.table
    table.factor = LARGE
    for _ in range(3):
        step(True)
    slots = [slot for bucket in table.buckets for slot in bucket.slots]
    assert len(slots) == len({id(slot) for slot in slots}) == 6
    expected = torch.autograd.grad(model(x).sum() / 2, list(model.parameters()))
    for parameter, right in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, right)
