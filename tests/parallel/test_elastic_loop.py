"""The loop around a training function, and how the ranks agree on updates of the hosts."""

from __future__ import annotations

import pytest
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki import elastic
from sirtaki.elastic.run import run_fn
from sirtaki.elastic.state import HostUpdateResult
from sirtaki.exceptions import HostsUpdatedInterrupt


@pytest.fixture
def elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the launcher sets it. Every rank starts as a newcomer."""
    monkeypatch.setenv("SIRTAKI_ELASTIC", "1")
    monkeypatch.setattr(elastic, "progress", 0)


class _Recorded(hvd.elastic.State):
    """Notes what the loop calls."""

    def __init__(self) -> None:
        super().__init__(lambda obj: obj, lambda: 0)
        self.calls: list[str] = []
        self.register_reset_callbacks([lambda: self.calls.append("callback")])

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("reset")


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (hvd.HorovodInternalError("x"), ["sync", "train", "restore", "join", "reset", "callback", "sync", "train"]),
        (HostsUpdatedInterrupt(), ["sync", "train", "join", "reset", "callback", "sync", "train"]),
        (HostsUpdatedInterrupt(skip_sync=True), ["sync", "train", "join", "reset", "callback", "train"]),
    ],
    ids=["failure", "update", "update without sync"],
)
@ranks(2)
def test_loop(error: Exception, calls: list[str]) -> None:
    state = _Recorded()
    errors = [error]

    def train(state: _Recorded, word: str, *, last: str) -> str:
        """Trains."""
        state.calls.append("train")
        if errors:
            raise errors.pop()
        return word + last

    looped = run_fn(train, lambda: state.calls.append("join"))
    assert looped(state, "a", last="b") == "ab"
    assert looped.__doc__ == "Trains."
    assert state.calls == calls


@ranks(2)
def test_loop_raises_other_errors_and_what_repeats(elastic_job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _Recorded()

    def train(state: _Recorded, error: Exception) -> None:
        raise error

    looped = run_fn(train, lambda: state.calls.append("join"))
    with pytest.raises(KeyError, match="own"):
        looped(state, KeyError("own"))
    assert state.calls == ["sync"]
    with pytest.raises(hvd.HorovodInternalError, match="disagree"):
        looped(state, hvd.HorovodInternalError("the ranks disagree"))  # the job has not failed
    assert state.calls.count("join") == 1
    again = run_fn(train, lambda: (_ for _ in ()).throw(hvd.HorovodInternalError("nobody joins")))
    with pytest.raises(hvd.HorovodInternalError, match="nobody joins"):
        again(state, HostsUpdatedInterrupt())


@ranks(2)
def test_run_without_an_elastic_job_calls_once() -> None:
    state = _Recorded()

    @hvd.elastic.run
    def train(state: _Recorded, error: Exception | None = None) -> int:
        state.calls.append("train")
        if error is not None:
            raise error
        return 4

    assert train(state) == 4
    for error in (HostsUpdatedInterrupt(), hvd.HorovodInternalError("x")):
        with pytest.raises(type(error)):
            train(state, error)
    assert state.calls == ["sync", "train"] * 3


@ranks(2)
def test_updates_without_an_elastic_job() -> None:
    state = _Recorded()
    state.check_host_updates()
    state.on_hosts_updated(3, HostUpdateResult.removed)
    state.on_hosts_updated(2, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert (raised.value.skip_sync, state._last_updated_timestamp) == (True, 3)
    state.on_hosts_updated(3, HostUpdateResult.added)  # not new
    state.check_host_updates()
    state.on_hosts_updated(4, HostUpdateResult.added)
    state.on_hosts_updated(5, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert not raised.value.skip_sync
    assert state.calls == ["save"]
    state.on_hosts_updated(6, HostUpdateResult.added)
    state.on_reset()
    assert state._host_messages.empty()


@ranks(2)
def test_all_ranks_agree_on_updates(elastic_job: None) -> None:
    """Only the last rank knows of the first update, and both know of others."""
    state = _Recorded()
    state.check_host_updates()
    if hvd.rank() == hvd.size() - 1:
        state.on_hosts_updated(5.5, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert (raised.value.skip_sync, state._last_updated_timestamp) == (True, 5.5)
    state.on_hosts_updated(5.5, HostUpdateResult.removed)  # comes late to the other ranks
    state.check_host_updates()
    state.on_hosts_updated(6 + hvd.rank(), 1 + hvd.rank())
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert (raised.value.skip_sync, state._last_updated_timestamp) == (False, 7)
