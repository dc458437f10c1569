"""Actions that are due at some time, for a loop that waits in one place."""

from collections.abc import Callable

NEVER = float("inf")
Action = Callable[[], None]


class Timers:
    """Each action has one time at most, in seconds of time.monotonic()."""

    def __init__(self) -> None:
        self._times: dict[Action, float] = {}

    def at(self, time: float, action: Action) -> None:
        """Sets the action's time, in place of an earlier one."""
        self._times[action] = time

    def cancel(self, action: Action) -> None:
        self._times.pop(action, None)

    def time_of(self, action: Action) -> float:
        """NEVER if it has no time."""
        return self._times.get(action, NEVER)

    def waits(self, action: Action) -> bool:
        return action in self._times

    def next(self) -> float:
        """The time of the first action, NEVER without one."""
        return min(self._times.values(), default=NEVER)

    def run(self, now: float) -> None:
        """Runs the actions that are due, in the order of their times. Each has no time any more when it runs."""
        for action in sorted(
            (action for action, time in self._times.items() if time <= now), key=self._times.__getitem__
        ):
            if self._times.get(action, NEVER) <= now:  # an action before it may have moved it
                del self._times[action]
                action()
