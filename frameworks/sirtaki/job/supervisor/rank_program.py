"""The processes of a rank's program: asked to end, killed, and ended by force if they outlive the program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from sirtaki.host import processes, segments
from sirtaki.host.timers import NEVER
from sirtaki.job.protocol.time_limits import AFTER_KILL, BEFORE_ASKING, LEFTOVERS
from sirtaki.job.supervisor import program_signals
from sirtaki.job.supervisor.program_signals import ProgramSignals


@dataclass
class RankState:
    """What the rank's process has reported. up: its init() has ended. left: it has left the job normally. lost: its
    pid, if it ended without a report. announced_code: the exit code that came with its failure cause.
    """

    up: bool = False
    left: bool = False
    lost: int = 0
    announced_code: int = 0


class RankProgram:
    """pid: of the process that was started. exit_code: None while it runs. asked: whether it was asked to end before
    its end. over: whether it and all its processes have ended.
    """

    def __init__(self, grace: float) -> None:
        self.pid = 0
        self.exit_code: int | None = None
        self.asked = False
        self.over = False
        self.signals = ProgramSignals()
        self._grace = grace
        self._segments: set[bytes] = set()  # of a program that was asked to end, and may not remove them
        self._ask_leftovers_at = self._give_up_at = NEVER

    def ask(self, process: int) -> None:
        """Asks the rank's process to end; if 0, the one that was started, which may be a script around it."""
        if self.exit_code is None:
            self.asked = True
            self.signals.number = self.signals.number or signal.SIGTERM
            self.note_segments()
            self.signals.ask([process or self.pid])

    def kill(self, reap: Callable[[], None]) -> None:
        if self.exit_code is None:
            self.asked = True
            self.note_segments()
        processes.kill_descendants(os.getpid(), reap)

    def note_segments(self) -> None:
        self._segments |= segments.held_by(processes.descendants(os.getpid()))

    def remove_segments(self) -> None:
        segments.remove_names(self._segments)

    def has_leftovers(self) -> bool:
        return self.exit_code is not None and not self.over

    def end_leftovers(self, now: float) -> float:
        """After the program's end: asks its remaining processes to end. Returns when to kill them, NEVER if open."""
        left = processes.descendants(os.getpid())
        kill_at = NEVER
        if left and self._ask_leftovers_at == NEVER:
            self._ask_leftovers_at = now + BEFORE_ASKING
        if now >= self._ask_leftovers_at and self._give_up_at == NEVER:
            self.signals.number = self.signals.number or signal.SIGTERM
            may_save = self.asked or self.signals.came_from_outside()  # a script's child may be the rank's process
            kill_at = now + (self._grace if may_save else min(LEFTOVERS, self._grace))
            self._give_up_at = kill_at + AFTER_KILL
        if now >= self._ask_leftovers_at:
            self.signals.ask(program_signals.own_children(left))
        self.over = not left or now > self._give_up_at
        return kill_at

    def grace_of(self, process: int) -> float:
        """Seconds to end. A stopped process cannot save anything."""
        useless = processes.is_stopped(process or self.pid)
        return min(LEFTOVERS, self._grace) if useless else self._grace
