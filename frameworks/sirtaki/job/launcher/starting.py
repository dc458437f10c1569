"""Which ranks have called init() and which have completed it; which are missing after the limit."""

import time
from collections import Counter

from sirtaki.host.timers import NEVER
from sirtaki.job.protocol.time_limits import STOPPED_RANKS

_SETTING = "SIRTAKI_START_TIMEOUT"


class Starting:
    """ranks: number of ranks. The first call of init() starts the limit for all ranks: once until all have called it,
    and once again until all have completed it. A later init(), after shutdown(), has the same limit. due: when the
    limit ends. was_up: all ranks have completed init() at least once.
    """

    def __init__(self, ranks: int) -> None:
        self.due = NEVER
        self.was_up = False
        self._ranks = ranks
        self._limit = 0.0
        self._calls = Counter[int]()
        self._inside: set[int] = set()
        self._failed: set[int] = set()  # init() raised an exception, which the program may have caught
        self._ended: set[int] = set()  # programs that have ended
        self._asked = False

    def on_call(self, rank: int, limit: float) -> None:
        was_complete = self._is_complete()
        self._limit = self._limit if self._calls else limit
        self._calls[rank] += rank not in self._failed  # a second attempt does not count as a later init()
        self._inside.add(rank)
        self._failed.discard(rank)
        if self.due == NEVER or was_complete != self._is_complete():
            self.due = time.monotonic() + self._limit
        self._check_ended()

    def on_end(self, rank: int) -> None:
        """The rank's program has ended. If it has never called init(), the others wait in vain."""
        self._ended.add(rank)
        self._check_ended()

    def _check_ended(self) -> None:
        if self._inside and self._ended - set(self._calls):
            self.due = 0.0

    def on_over(self, rank: int, well: bool) -> None:
        self._inside.discard(rank)
        if not well:
            self._failed.add(rank)
        if self._is_complete() and not self._inside:
            self.due, self._asked = NEVER, False
            self.was_up = self.was_up or not self._failed

    def ask(self) -> tuple[set[int], str]:
        """(ranks to check before missing() is called, the text for the check); no ranks if known or asked already."""
        if not self._is_complete() or self._late_callers() or self._asked:
            return set(), ""
        self._asked = True
        self.due = time.monotonic() + STOPPED_RANKS
        return self._inside, self._text()

    def missing(self) -> tuple[int, str]:
        """(the first missing rank, the message about all of them)."""
        self.due = NEVER
        late = self._late_callers()
        if gone := sorted(self._ended - set(self._calls)):
            return gone[0], f"{names(gone)} ended with exit code 0 without calling init(), in which other ranks wait"
        if not self._is_complete():
            late = sorted(set(range(self._ranks)) - set(self._calls))
        if late:
            again = " again" if self._is_complete() else ""
            arrived = f"{self._ranks - len(late)} of {self._ranks} ranks arrived{again} within {self._limit:g} s"
            return late[0], f"{arrived} ({_SETTING}), missing: {names(late)}, which did not call init(){again}"
        if self._failed:
            failed = sorted(self._failed)
            return failed[0], f"{self._text()}: it has failed on {names(failed)}, and the other ranks wait in it"
        inside = sorted(self._inside)
        return inside[0], f"{self._text()}, on {names(inside)}"

    def _is_complete(self) -> bool:
        return len(self._calls) >= self._ranks

    def _late_callers(self) -> list[int]:
        """Ranks missing in a later init()."""
        times = max(self._calls.values(), default=0)
        return sorted(rank for rank, count in self._calls.items() if count < times) if times > 1 else []

    def _text(self) -> str:
        return f"all {self._ranks} ranks have called init(), but it did not end within {self._limit:g} s ({_SETTING})"


def names(ranks: list[int]) -> str:
    """In words, for a message."""
    shown = ", ".join(map(str, ranks[:20])) + (", ..." if len(ranks) > 20 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
