"""Which processes are ranks of an elastic job, and when that changes: a state machine without clock, input or output.

The job calls a method for each event, and then carries out the actions that take() returns (docs/elastic.md).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sirtaki.job.elastic.actions import (
    ADDED,
    REMOVED,
    Action,
    Announce,
    Break,
    End,
    Form,
    Leave,
    Limit,
    Refuse,
    Rest,
    Slot,
    Start,
    Stop,
)
from sirtaki.job.elastic.slots import Slots
from sirtaki.starters.request import Host

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"  # Horovod's text
)
START, ELASTIC = "start", "elastic"  # names of limits
_MOST_FRUITLESS = 5


class State(enum.Enum):
    WAITING = enum.auto()  # for the processes of the first generation
    FORMING = enum.auto()  # the members have the table, and connect
    TRAINING = enum.auto()
    CHANGING = enum.auto()  # a member was lost or has come back; the others come back
    ENDING = enum.auto()  # a member has returned 0: no more changes
    FAILED = enum.auto()
    DONE = enum.auto()


@dataclass
class _Process:
    """waits: in init(), for a table. progress: number of commits that it has. rank: in the newest generation of which
    it was a member, -1 if there was none. leaves: it has been asked to leave or to end.
    """

    number: int
    slot: Slot
    waits: bool = False
    progress: int = 0
    rank: int = -1
    leaves: bool = False


class Membership:
    """need: processes for the first generation. least, most: of every later one. reset_limit: of generations after the
    first, None for no limit. first_failure: number of the process that failed first, or None.
    """

    def __init__(self, need: int, least: int, most: int | None = None, reset_limit: int | None = None) -> None:
        self.state = State.WAITING
        self.generation = 0
        self.first_failure: int | None = None
        self._need, self._least, self._most, self._reset_limit = need, least, most, reset_limit
        self._slots = Slots()
        self._processes: dict[int, _Process] = {}
        self._next = 0
        self._members: set[int] = set()  # of the generation, without those that have come back or ended
        self._up: set[int] = set()
        self._called_lost: set[int] = set()  # members whose loss others have noticed
        self._change = self._announced = 0  # since this generation was formed
        self._lost_member = False  # since this generation was formed
        self._patient = True  # before the first generation: while more processes may arrive soon
        self._counts = False  # whether the limit for that has begun
        self._newest = 0  # progress of the generation when it was formed
        self._fruitless = 0  # generations that ended by a failure, since the last commit
        self._actions: list[Action] = [Limit(ELASTIC, True)]

    def take(self) -> list[Action]:
        """The actions since the last call, in their order."""
        actions, self._actions = self._actions, []
        return actions

    def members(self) -> tuple[int, ...]:
        """The processes that train or connect now."""
        return tuple(sorted(self._members))

    def processes(self) -> list[int]:
        """All that have been started and have not ended."""
        return sorted(self._processes)

    def counts(self, number: int) -> bool:
        """Whether a failure of this process is one of the job: it was not asked to leave or to end."""
        return number in self._processes and not self._processes[number].leaves

    def is_over(self) -> bool:
        return self.state in (State.FAILED, State.DONE)

    # ---- events ---------------------------------------------------------------------------------------------------

    def on_hosts(self, hosts: Sequence[Host]) -> None:
        """These hosts may be used from now on."""
        if self.is_over() or self.state == State.ENDING:
            return
        self._slots.set([Slot(host.name, index) for host in hosts for index in range(host.slots)])
        for process in list(self._processes.values()):
            if process.slot in self._slots or process.leaves:
                continue
            if process.number in self._members:
                self._change |= REMOVED
            else:
                self._dismiss(process, "its slot was removed")
        self._proceed()

    def on_join(self, number: int, progress: int, lost: int = -1) -> None:
        """The process waits in init(). lost: the process whose loss has ended its generation, -1 if it is unknown."""
        process = self._processes.get(number)
        if process is None or self.is_over():
            return
        process.waits, process.progress = True, progress
        if number in self._members:
            self._members.remove(number)
            self._begin_change()
        if lost in self._members and not self._called_lost:  # it may be stopped, and must not delay the others
            self._act(Limit(START, True))
        self._called_lost |= {lost} & self._members
        if process.leaves or process.slot not in self._slots:
            self._dismiss(process, "its slot was removed")
        elif self.state == State.ENDING:
            self._turn_away(process)
        elif self.generation == 0 and self._patient and not self._counts:
            self._counts = True
            self._act(Limit(START, True))
        elif process.rank < 0:
            self._change |= ADDED
        self._proceed()

    def on_up(self, number: int) -> None:
        """The process has completed init()."""
        self._up |= {number} & self._members
        if self.state == State.FORMING and self._up >= self._members:
            self.state = State.TRAINING
            self._act(Limit(START, False))

    def on_init_failed(self, number: int) -> None:
        """init() has raised an exception in the process, which may call it again."""
        if number in self._processes:
            self._processes[number].waits = False
        if number in self._members and self.state == State.FORMING:
            self._lose(number, "init() has failed there")
        self._proceed()

    def on_end(self, number: int, well: bool, text: str = "", unreachable: bool = False) -> None:
        """The process has ended. well: it has left the job, and returned 0. unreachable: so is its host."""
        process = self._processes.pop(number, None)
        if process is None or self.is_over():
            return
        was_member = number in self._members or process.rank >= 0
        if not well and not process.leaves:
            self._note_failure(process, text, unreachable)
        self._members.discard(number)
        if well and not process.leaves and (was_member or self.generation == 0):
            self._end_changes()
        elif well and not process.leaves:
            self._rest(process.slot)  # a newcomer that never called init() must not start in a fast loop
        self._proceed()

    def on_rested(self, slot: Slot) -> None:
        """A process may start in this slot again."""
        self._slots.end_rest(slot)
        self._proceed()

    def on_limit(self, name: str) -> None:
        if self.is_over():
            return
        if name == START and self.state == State.FORMING:
            late = sorted(self._members - self._up)
            self._lose(late[0], "it did not complete init() in time")
        elif name == START and self.state == State.CHANGING:
            self._kill(self._called_lost & self._members)
        elif name == START:
            self._patient = False
        elif self.state in (State.WAITING, State.CHANGING):
            self._on_elastic_limit()
        self._proceed()

    # ---- decisions ------------------------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _proceed(self) -> None:
        if self.state == State.ENDING:
            if not self._processes:
                self.state = State.DONE
            return
        if self.is_over():
            return
        self._start_processes()
        self._announce()
        if self.state in (State.WAITING, State.CHANGING) and not self._members:
            self._try_to_form()
        if all(process.leaves for process in self._processes.values()) and self._slots.all_rest():
            self._fail("every slot has failed")

    def _start_processes(self) -> None:
        free = self._slots.free(self._busy())
        if self._most is not None:
            wanted = sum(1 for process in self._processes.values() if self._is_wanted(process))
            free = free[: max(0, self._most - wanted)]
        for slot in free:
            self._processes[self._next] = _Process(self._next, slot)
            self._act(Start(self._next, slot))
            self._next += 1

    def _busy(self) -> set[Slot]:
        return {process.slot for process in self._processes.values()}

    def _is_wanted(self, process: _Process) -> bool:
        return not process.leaves and process.slot in self._slots

    def _announce(self) -> None:
        """Newcomers are admitted when they wait in init(), so that the members never wait for them."""
        if self.state in (State.FORMING, State.TRAINING) and self._change != self._announced:
            self._announced = self._change
            self._act(Announce(self.members(), self._change))

    def _try_to_form(self) -> None:
        found = [process for process in self._processes.values() if process.waits and self._is_wanted(process)]
        if self.generation == 0:
            all_here = len(found) == sum(1 for process in self._processes.values() if self._is_wanted(process))
            if len(found) >= self._need and (all_here or not self._patient):
                self._form(found)
        elif len(found) >= self._least:
            self._form(found)

    def _form(self, found: list[_Process]) -> None:
        ordered = _in_order(found)[: self._most]
        newest = ordered[0].progress
        if self.generation > 0 and self._may_not_reset(newest):
            return
        for process in ordered:
            if process.rank >= 0 and newest > self._newest:
                self._slots.note_success(process.slot)
        is_lost = self.generation > 0 and all(process.rank < 0 for process in ordered)
        lost_commits = self._newest if is_lost else None
        self.generation += 1
        self._newest = newest
        self.state = State.FORMING
        self._members, self._up = {process.number for process in ordered}, set()
        self._called_lost = set()
        self._change = self._announced = 0
        self._lost_member = False
        for rank, process in enumerate(ordered):
            process.rank, process.waits = rank, False
        self._act(Form(self.generation, tuple(process.number for process in ordered), lost_commits))
        self._act(Limit(ELASTIC, False))
        self._act(Limit(START, True))

    def _may_not_reset(self, newest: int) -> bool:
        """Fails the job if it has been reset too often."""
        self._fruitless = 0 if newest > self._newest else self._fruitless + self._lost_member
        if self._reset_limit is not None and self.generation > self._reset_limit:
            self._fail(RESET_LIMIT_EXCEEDED_MESSAGE.format(self._reset_limit))
        elif self._fruitless >= _MOST_FRUITLESS:
            self._fail(f"{_MOST_FRUITLESS} generations have failed since the last commit")
        return self.is_over()

    def _begin_change(self) -> None:
        if self.state in (State.FORMING, State.TRAINING):
            self.state = State.CHANGING
            self._act(Limit(START, False))
            self._act(Limit(ELASTIC, True))

    def _lose(self, number: int, text: str) -> None:
        """A member does not take part any more. The others receive the cause, and come back."""
        others = tuple(sorted(self._members - {number}))
        self._lost_member = True
        self._act(Break(self.generation, others, number, text))
        self._begin_change()

    def _note_failure(self, process: _Process, text: str, unreachable: bool) -> None:
        if self.first_failure is None:
            self.first_failure = process.number
        if self.state == State.ENDING:
            return
        if process.number in self._members:
            self._lose(process.number, text)
        self._rest(process.slot)
        if unreachable:
            for slot in self._slots.free(self._busy()):
                if slot.host == process.slot.host:
                    self._rest(slot)

    def _rest(self, slot: Slot) -> None:
        if failures := self._slots.rest(slot):
            self._act(Rest(slot, failures))

    def _dismiss(self, process: _Process, why: str) -> None:
        """A process that waits in init() leaves by itself."""
        process.leaves = True
        self._act(Leave(process.number, why) if process.waits else End(process.number, kill=False))

    def _turn_away(self, process: _Process) -> None:
        if self.generation == 0:
            self._act(Refuse(process.number, "another process of the job has ended already, without init()"))
        else:
            self._dismiss(process, "another rank has finished the job")

    def _end_changes(self) -> None:
        """A member has finished the training; the others are about to."""
        if self.state == State.ENDING:
            return
        self.state = State.ENDING
        for name in (START, ELASTIC):
            self._act(Limit(name, False))
        for process in list(self._processes.values()):
            if process.leaves or process.number in self._members:
                continue
            if process.waits:
                self._turn_away(process)
            elif self.generation > 0:
                self._dismiss(process, "")

    def _on_elastic_limit(self) -> None:
        waiting = sum(1 for process in self._processes.values() if process.waits and self._is_wanted(process))
        wanted = self._least if self.generation else self._need
        if waiting < wanted:
            absent = [p for p in self._processes.values() if self._is_wanted(p) and not p.waits]
            names = ", ".join(f"process {p.number} on host {p.slot.host}" for p in absent)
            which = f"; not there: {names}" if names else ""
            self._fail(f"only {waiting} of at least {wanted} processes called init() within --elastic-timeout{which}")
            return
        self._kill(self._members)
        self._act(Limit(ELASTIC, True))

    def _kill(self, numbers: set[int]) -> None:
        """They have not come back, and the others wait for them."""
        for number in sorted(numbers):
            self._processes[number].leaves = True
            self._act(End(number, kill=True))

    def _fail(self, why: str) -> None:
        self.state = State.FAILED
        self._act(Stop(why))


def _in_order(processes: list[_Process]) -> list[_Process]:
    """The newest state first: the other ranks get it from rank 0. Then in the order of the old ranks. Each host's
    processes follow each other.
    """
    ordered = sorted(processes, key=lambda each: (-each.progress, each.rank < 0, each.rank, each.number))
    hosts = list(dict.fromkeys(each.slot.host for each in ordered))
    return sorted(ordered, key=lambda each: hosts.index(each.slot.host))
