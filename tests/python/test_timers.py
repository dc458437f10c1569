"""Timers of a loop: each action once, in the order of the times, and no action that another one has put off."""

from sirtaki.host.timers import NEVER, Timers


class Loop:
    def __init__(self) -> None:
        self.timers = Timers()
        self.done: list[str] = []

    def first(self) -> None:
        self.done.append("first")
        self.timers.at(9.0, self.second)

    def second(self) -> None:
        self.done.append("second")

    def third(self) -> None:
        self.done.append("third")
        self.timers.at(5.0, self.third)


def test_actions_run_once_and_in_order():
    loop = Loop()
    timers = loop.timers
    assert timers.next() == timers.time_of(loop.first) == NEVER
    timers.at(3.0, loop.third)
    timers.at(1.0, loop.first)
    timers.at(8.0, loop.second)
    timers.at(2.0, loop.second)
    assert timers.next() == 1.0 and timers.waits(loop.second)
    timers.run(0.5)
    assert loop.done == []
    timers.run(4.0)
    assert loop.done == ["first", "third"], "the first action has put off the second"
    assert timers.time_of(loop.second) == 9.0 and timers.time_of(loop.third) == 5.0
    assert not timers.waits(loop.first)
    timers.cancel(loop.second)
    timers.cancel(loop.second)
    timers.run(100.0)
    assert loop.done == ["first", "third", "third"]
