"""A simulated elastic job: processes, hosts and messages at random times, around the membership that decides."""

import itertools
import random
from dataclasses import dataclass, field

from sirtaki.job.elastic import actions
from sirtaki.job.elastic.membership import ELASTIC, START, Membership, State
from sirtaki.starters.request import Host

STEPS = 6  # of the training
_MOST_EVENTS = 20_000


@dataclass
class Process:
    """phase: starting, waiting, connecting, training, returning (to init()), leaving. batches: that its state has."""

    slot: actions.Slot
    phase: str = "starting"
    generation: int = 0
    batches: list[int] = field(default_factory=list)
    announced: bool = False


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.randint
        self.least = pick(1, 3)
        need = self.least + pick(0, 2)
        most = self.random.choice([None, need + pick(0, 2)])
        reset_limit = self.random.choice([None, None, None, pick(0, 6)])
        self.membership = Membership(need, self.least, most, reset_limit)
        self.most = most or 1000
        self.processes: dict[int, Process] = {}
        self.resting: list[actions.Slot] = []
        self.limits = {START: False, ELASTIC: False}
        self.generation = 0
        self.ranks: tuple[int, ...] = ()
        self.result: list[int] | None = None  # of the first process that has finished
        self.stopped = ""
        self.troubles = pick(0, 8)  # deaths and changes of hosts that are still to come

    def run(self) -> None:
        """Until the job is over. AssertionError if it hangs, or breaks a rule."""
        self.change_hosts()
        for _ in range(_MOST_EVENTS):
            if self.membership.is_over():
                break
            self.one_event()
        assert self.membership.is_over(), f"goes on for ever in {self.membership.state}"
        if self.membership.state == State.DONE:
            assert not self.processes
            assert self.result == list(range(STEPS)), self.result
        else:
            assert self.stopped

    def one_event(self) -> None:
        events = [event for number in list(self.processes) for event in self.events_of(number)]
        events += [lambda slot=slot: self.rest_ends(slot) for slot in self.resting]
        if self.troubles and self.generation and self.random.random() < 0.1:
            self.troubles -= 1
            living = [number for number, process in self.processes.items() if process.phase != "gone"]
            if living and self.random.random() < 0.6:
                self.dies(self.random.choice(living))
            else:
                self.change_hosts()
        elif events:
            self.random.choice(events)()
        else:
            due = [name for name, on in self.limits.items() if on]
            assert due, f"nothing can happen any more in {self.membership.state}"
            self.limit_passes(self.random.choice(due))
        self.carry_out()
        if self.random.random() < 0.02:
            self.late_message()
        if self.limits[START] and self.random.random() < 0.01:
            self.limit_passes(START)
        self.carry_out()

    def events_of(self, number: int) -> list:
        process = self.processes[number]
        events = {
            "starting": [lambda: self.joins(number)],
            "returning": [lambda: self.joins(number)],
            "connecting": [lambda: self.connects(number)],
            "leaving": [lambda: self.ends(number, well=True)],
        }.get(process.phase, [])
        if process.phase in ("training", "connecting") and self.is_broken(process.generation):
            events = [lambda: self.notices(number)]
        elif process.phase == "training" and len(process.batches) == STEPS:
            events = [lambda: self.finishes(number)]
        elif process.phase == "training" and self.may_step(process):
            events = [lambda: self.steps(number)]
        return events

    # ---- what processes do ----------------------------------------------------------------------------------------

    def comrades(self, generation: int) -> list[Process]:
        return [process for process in self.processes.values() if process.generation == generation]

    def is_broken(self, generation: int) -> bool:
        """Whether a member has died, or has come back to init(). One that has finished breaks nothing."""
        phases = {process.phase for process in self.comrades(generation)}
        return generation != self.generation or self.lost or bool(phases & {"waiting", "returning", "leaving"})

    def may_step(self, process: Process) -> bool:
        """A collective needs all members, so nobody is more than one batch ahead."""
        members = self.comrades(process.generation)
        together = all(other.phase == "training" for other in members) and len(members) + self.finished == len(
            self.ranks
        )
        return together and all(len(other.batches) >= len(process.batches) for other in members)

    def joins(self, number: int) -> None:
        self.processes[number].phase = "waiting"
        lost = self.random.choice([-1, *self.processes])
        self.membership.on_join(number, len(self.processes[number].batches), lost)

    def connects(self, number: int) -> None:
        process = self.processes[number]
        if self.random.random() < 0.02:
            process.phase = "returning"
            self.membership.on_init_failed(number)
            return
        process.phase = "training"
        process.batches = list(self.newest)  # from rank 0
        self.membership.on_up(number)

    def steps(self, number: int) -> None:
        """Trains on one batch, and commits. Here all ranks agree whether hosts have changed."""
        process = self.processes[number]
        members = self.comrades(process.generation)
        level = {len(other.batches) for other in members} == {len(process.batches)}
        if level and any(other.announced for other in members):
            for other in members:
                other.phase = "returning"
            return
        process.batches.append(len(process.batches))

    def notices(self, number: int) -> None:
        self.processes[number].phase = "returning"

    def finishes(self, number: int) -> None:
        self.result = self.result or self.processes[number].batches
        self.finished += 1
        assert self.processes[number].batches == list(range(STEPS))
        self.ends(number, well=True)

    def dies(self, number: int) -> None:
        self.lost = self.lost or self.processes[number].generation == self.generation
        self.ends(number, well=False, unreachable=self.random.random() < 0.2)

    def ends(self, number: int, well: bool, unreachable: bool = False) -> None:
        del self.processes[number]
        self.membership.on_end(number, well, "killed", unreachable)

    def late_message(self) -> None:
        number = self.random.randint(0, 12)
        process = self.processes.get(number)
        if process is None:
            self.membership.on_join(number, 3)
            self.membership.on_end(number, self.random.random() < 0.5)
        if process is None or process.phase in ("waiting", "starting"):
            self.membership.on_up(number)

    # ---- what happens around them ---------------------------------------------------------------------------------

    def change_hosts(self) -> None:
        pick = self.random.randint
        hosts = [Host(name, pick(1, 3)) for name in ("a", "b", "c") if self.random.random() < 0.7]
        self.membership.on_hosts(hosts or [Host("a", 2)])
        self.carry_out()

    def rest_ends(self, slot: actions.Slot) -> None:
        self.resting.remove(slot)
        self.membership.on_rested(slot)

    def limit_passes(self, name: str) -> None:
        self.limits[name] = False
        self.membership.on_limit(name)

    # ---- what the membership decides ------------------------------------------------------------------------------

    newest: tuple[int, ...] = ()
    lost = False
    finished = 0

    def carry_out(self) -> None:
        for action in self.membership.take():
            if isinstance(action, actions.Start):
                assert action.slot not in [process.slot for process in self.processes.values()], "two in one slot"
                self.processes[action.number] = Process(action.slot)
            elif isinstance(action, actions.Form):
                self.form(action)
            elif isinstance(action, actions.Leave | actions.Refuse):
                assert self.processes[action.number].phase == "waiting"
                self.processes[action.number].phase = "leaving"
            elif isinstance(action, actions.End) and action.number in self.processes:
                self.processes[action.number].phase = "leaving"
                self.lost = self.lost or self.processes[action.number].generation == self.generation
            elif isinstance(action, actions.Announce):
                for number in action.numbers:
                    self.processes[number].announced = True
            elif isinstance(action, actions.Break):
                self.lost = self.lost or action.generation == self.generation
            elif isinstance(action, actions.Rest):
                self.resting.append(action.slot)
            elif isinstance(action, actions.Limit):
                self.limits[action.name] = action.on
            elif isinstance(action, actions.Stop):
                self.stopped = action.why

    def form(self, action: actions.Form) -> None:
        training = [n for n, process in self.processes.items() if process.phase in ("connecting", "training")]
        assert not training, f"{training} still train in generation {self.generation}"
        assert action.generation == self.generation + 1
        assert self.least <= len(action.numbers) <= self.most
        members = [self.processes[number] for number in action.numbers]
        assert {process.phase for process in members} == {"waiting"}
        waiting = [process for process in self.processes.values() if process.phase == "waiting"]
        assert len(members[0].batches) == max(len(process.batches) for process in waiting), "a commit is lost"
        hosts = [process.slot.host for process in members]
        assert len(set(hosts)) == 1 + sum(a != b for a, b in itertools.pairwise(hosts)), "hosts are mixed"
        self.generation, self.ranks, self.lost = action.generation, action.numbers, False
        assert not self.finished
        self.newest = tuple(members[0].batches)
        for process in members:
            process.phase, process.generation, process.announced = "connecting", self.generation, False
