"""`--restarts`: starts the whole job anew after a failure. Also signals to a launcher while it has no job."""

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sirtaki.host.signals import PASSED_ON
from sirtaki.job.launcher.screen import Screen

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_WAIT = 60.0  # seconds
_WORKED = 60.0  # seconds; after a longer life the waits begin anew


@dataclass
class Life:
    """How one start of the job ended. failure: what failed, "" if nothing. final: why a new start would not help."""

    code: int
    failure: str = ""
    final: str = ""


def run(live: Callable[[int], Life], at_most: int, screen: Screen) -> int:
    """Calls live(0), and again live(1), live(2), ... after failures. Returns the exit code of the last life."""
    short = 0  # lives in a row
    for number in itertools.count():
        began = time.monotonic()
        life = live(number)
        if not life.failure or at_most == 0:
            return life.code
        if life.final or number >= at_most:
            screen.note(f"not restarted: {life.final or f'no restart is left (--restarts {at_most})'}")
            return life.code
        short = 0 if time.monotonic() - began >= _WORKED else short + 1
        wait = seconds_before_start(short)
        with _blocked() as signals:  # an exception in the middle of a line would repeat the line
            screen.note(f"restart {number + 1} of {at_most} in {wait:g} s: {life.failure}")
            if came := signal.sigtimedwait(signals, wait):
                screen.note(f"ended by a signal before restart {number + 1}")
                return 128 + came.si_signo
    raise AssertionError("unreachable")


def seconds_before_start(short: int) -> float:
    """short: number of lives in a row that ended soon. A program that fails at once must not start in a fast loop."""
    return min(_LONGEST_WAIT, 2.0 ** max(0, short - 1))


@contextmanager
def _blocked() -> Iterator[set[signal.Signals]]:
    """A context in which the signals that end a launcher wait. One that is ignored has no effect."""
    signals = {number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield signals
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Lets a signal that arrives while no job runs raise SystemExit, so that the job's directory is removed."""

    def leave(number: int, frame: object) -> None:
        if number not in PASSED_ON:  # these are for ranks, and there are none yet
            sys.exit(128 + number)

    before = {}
    for number in (*_ENDING, *PASSED_ON):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
