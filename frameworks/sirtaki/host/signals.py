"""The signals that launcher and supervisors pass on to the user's program."""

from __future__ import annotations

import signal

# Schedulers send them as a warning to the program's handler; helper processes ignore them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def ignore_warnings() -> None:
    """For a process that does not run the user's program, and for processes that it starts."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
