"""What a program keeps from one set of ranks to the next: State, and ObjectState for Python objects."""

from __future__ import annotations

import copy
import enum
import queue
from collections.abc import Callable, Sequence
from typing import Any

from sirtaki import elastic, exchange
from sirtaki.checks import gradient_kinds
from sirtaki.elastic import membership
from sirtaki.exceptions import HostsUpdatedInterrupt
from sirtaki.job.rank import membership_updates


class HostUpdateResult(enum.IntFlag):
    """What has happened to the slots of a job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """The base class. Subclasses define save(), restore(), sync() and reset().

    bcast_object(object, root_rank=0): sends an object to all ranks. get_rank(): this rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Functions to call when the ranks have changed, before sync(): they adapt a learning rate, for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notes that slots have been added or removed; check_host_updates() acts on it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, so that restore() returns to it, and then calls check_host_updates()."""
        self.save()
        elastic.progress += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt on all ranks if any rank knows of slots that were added or removed since the last time.

        In an elastic job every rank calls it equally often, and it waits for the others.
        """
        seen, found = self._own_updates()
        if membership.is_shared():
            flags = (found & HostUpdateResult.removed, found & HostUpdateResult.added)
            seen, *agreed = exchange.largest_numbers([seen, *flags], "elastic.updates")
            found = HostUpdateResult(int(sum(agreed)))
        if found:
            self._last_updated_timestamp = seen
            raise HostsUpdatedInterrupt(found == HostUpdateResult.removed)

    def _own_updates(self) -> tuple[float, HostUpdateResult]:
        """(time of the newest update that this rank knows, what the new ones are)."""
        while (update := membership_updates.take()) is not None:
            self.on_hosts_updated(*update)
        seen, found = self._last_updated_timestamp, HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update_res = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                seen, found = max(seen, timestamp), found | HostUpdateResult(update_res)
        return seen, found

    def save(self) -> None:
        """Copies the state into this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Returns to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the same state. Every rank calls it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed, before the reset callbacks."""


class ObjectState(State):
    """A state of Python objects: each keyword argument becomes an attribute. They must be picklable."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved_state = copy.deepcopy(self._present())

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """All ranks get the state of the first rank that has the most commits. What it gives counts as saved."""
        source, most = newest() if membership.is_shared() else (0, elastic.progress)
        self._receive(source)
        self.save()  # only now: a failure before must leave each rank with a whole state
        elastic.progress = most

    def _receive(self, source: int) -> None:
        """Overwrites the present state by that of the rank `source`."""
        present = self._present()
        if not present:
            return
        received = self._bcast_object(present, root_rank=source) if source else self._bcast_object(present)
        for name, value in received.items():
            setattr(self, name, value)

    def _present(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}


def newest() -> tuple[int, int]:
    """(the first rank with the most commits, their number). Every rank calls it.

    It also exchanges what the ranks have agreed on in graphs, which are not traced again.
    """
    everyone = exchange.allgather_object((elastic.progress, gradient_kinds.made()), "elastic.progress")
    gradient_kinds.carry_over([kinds for _, kinds in everyone])
    counts = [progress for progress, _ in everyone]
    return counts.index(max(counts)), max(counts)
