"""A running elastic job: carries out what its membership decides, and reports to it what happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sirtaki.host.timers import NEVER
from sirtaki.job.elastic import actions
from sirtaki.job.elastic.actions import Slot
from sirtaki.job.elastic.discovery import Discovery
from sirtaki.job.elastic.membership import ELASTIC, START, Membership, State
from sirtaki.job.elastic.plan import Plan
from sirtaki.job.launcher import failure, tables
from sirtaki.job.launcher.failure import Failure
from sirtaki.job.launcher.job import Job
from sirtaki.job.launcher.own_start import OwnStart
from sirtaki.job.launcher.workers import Worker
from sirtaki.job.protocol import channel
from sirtaki.job.protocol.time_limits import END_BY_ITSELF, TIDY_UP_IF_ELASTIC, UNANSWERED
from sirtaki.job.remote import addresses
from sirtaki.job.remote.remote_hosts import Remote
from sirtaki.starters.request import Host


class ElasticStart(OwnStart):
    """code: of the job. So the codes of single processes, which it may survive, do not count."""

    code = 0

    def exit_code(self) -> int:
        return self.code


class ElasticJob(Job):
    """Here the `rank` of a worker is the number of its process, which stays when its rank changes."""

    def __init__(self, *arguments: Any, plan: Plan, reached: Remote | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._plan = plan
        self._reached = reached
        self._membership = Membership(plan.need, plan.least, plan.most, plan.reset_limit)
        self._discovery = Discovery(plan.script, plan.slots, plan.hosts, self._on_hosts, self._screen.note)
        self._hosts: dict[str, int] = {}  # slots by host
        self._places: dict[int, Slot] = {}
        self._ranks: dict[int, int] = {}  # of the members of the newest generation
        self._waiting: dict[int, tables.Waiting] = {}
        self._failures: dict[int, Failure] = {}
        self._starting_numbers: set[int] = set()  # processes whose workers have not arrived
        self._process_limits: dict[int, Callable[[], None]] = {}  # what happens at the limit of a process
        self._limit_actions = {name: partial(self._on_limit, name) for name in (START, ELASTIC)}

    def was_up(self) -> bool:
        return self._membership.generation > 0

    def _all_ended_well(self) -> bool:
        return self._membership.state == State.DONE and self._failure.cause is None

    def _on_started(self) -> None:
        self._on_hosts(self._plan.hosts)
        slots = sum(host.slots for host in self._plan.hosts)
        if slots < self._plan.need:
            limit = f"{self._plan.timeout:g} s"
            self._screen.note(f"{slots} of {self._plan.need} slots are there; waits for more, up to {limit}")
        if self._plan.script:
            self._discovery.start(self._selector, self._timers)

    def _gone(self) -> bool:
        may_end = self._membership.is_over() or self._ending.sent or self._ending.given_up
        return bool(may_end) and super()._gone()

    def _on_abandoned(self) -> None:
        """For a while an elastic job may have no process."""
        if self._membership.is_over() or self._ending.sent:
            super()._on_abandoned()

    def _on_late_start(self) -> None:
        """Each process has a limit of its own."""

    # ---- events ---------------------------------------------------------------------------------------------------

    def _on_hosts(self, hosts: list[Host]) -> None:
        try:
            names = [host.name for host in hosts]
            if not all(addresses.is_own(name) for name in names):
                for name in names:
                    addresses.refuse_loopback(name, names)
                if self._reached is None:
                    raise ValueError("hosts cannot be added to a job that began without other hosts")
            if self._reached is not None:
                self._reached.add(hosts)
        except (ValueError, OSError) as error:
            self._screen.note(str(error))
            return
        self._hosts = {host.name: host.slots for host in hosts}
        self._membership.on_hosts(hosts)
        self._carry_out()

    def _on_arrival(self, worker: Worker) -> None:
        self._starting_numbers.discard(worker.rank)
        self._clear_limit(worker.rank)
        if self._ending.sent:
            self._workers.end_program(worker, self._ending.sent)
        elif not self._membership.counts(worker.rank):
            self._end_process(worker.rank, kill=False)

    def _set_limit(self, number: int, seconds: float, action: Callable[[], None]) -> None:
        """In place of the process's earlier limit."""
        self._clear_limit(number)
        self._process_limits[number] = action
        self._timers.at(time.monotonic() + seconds, action)

    def _clear_limit(self, number: int) -> None:
        if action := self._process_limits.pop(number, None):
            self._timers.cancel(action)

    def _on_table(self, worker: Worker, request: dict[str, Any]) -> None:
        self._waiting[worker.rank] = worker, request
        of_rank = {rank: number for number, rank in self._ranks.items()}
        is_newest = request["generation"] == self._membership.generation
        lost = of_rank.get(request["lost"], -1) if is_newest else -1
        self._membership.on_join(worker.rank, int(request["progress"]), lost)
        self._carry_out()

    def _on_joined(self, worker: Worker, limit: float) -> None:
        """The request for the table follows."""

    def _on_over(self, worker: Worker, well: bool) -> None:
        if well:
            self._membership.on_up(worker.rank)
        else:
            self._membership.on_init_failed(worker.rank)
        self._carry_out()

    def _on_cause(self, worker: Worker, message: dict[str, Any]) -> None:
        """A process that goes on has only taken note of a failure."""
        if message["code"]:
            cause = failure.of_message(worker.rank, worker.host, {**message, "rank": worker.rank, "host": worker.host})
            self._failures[worker.rank] = cause = replace(cause, witness=-1)
            if message.get("gone"):  # a wrapper of the rank may run on for long; its slot need not wait for it
                self._on_process_end(worker.rank, False, cause)
                self._workers.end_program(worker, signal.SIGTERM)
            else:
                self._set_limit(worker.rank, END_BY_ITSELF, partial(self._end_process, worker.rank, kill=False))

    def _on_exit(self, worker: Worker, message: dict[str, Any]) -> None:
        code = message["code"]
        self.status.on_end(worker.rank, code)
        self._workers.end_program(worker, signal.SIGTERM)  # it need not stay for its failure to be reported
        well = code in (0, 75) and not message["lost"]
        if code == 75:
            self._ending.to_resume.add(worker.rank)
        self._on_process_end(worker.rank, well, failure.of_exit(worker.rank, worker.host, code))

    def _on_loss(self, worker: Worker) -> None:
        self._screen.finish(worker.rank)
        self.status.on_end(worker.rank, None)
        if not worker.reported:
            lost = failure.of_loss(worker.rank, worker.host, worker.lost)
            self._on_process_end(worker.rank, False, lost, unreachable=bool(worker.lost))

    def _on_process_end(self, number: int, well: bool, cause: Failure, unreachable: bool = False) -> None:
        self._clear_limit(number)
        self._starting_numbers.discard(number)
        self._waiting.pop(number, None)
        cause = self._failures.pop(number, cause)
        cause.code = cause.code or None
        if not well:
            self._failures[number] = cause
            if not self._ending.sent and self._membership.counts(number):
                self._screen.show_for_rank(number, cause.details())
                self._screen.note(f"{self._named(number)} failed: {cause.first_line()}")
        ending = self._membership.state == State.ENDING
        if ending and not well and self._failure.cause is None and self._membership.counts(number):
            self._failure.cause = cause
        self._membership.on_end(number, well, cause.text, unreachable)
        self._carry_out()

    def _named(self, number: int) -> str:
        host = self._places[number].host if number in self._places else "?"
        rank = f"rank {self._ranks[number]}, " if number in self._ranks else ""
        return f"{rank}process {number} on host {host}"

    def _on_host(self, message: dict[str, Any]) -> bool:
        """From another host's agent, which its workers report for; or from the remote shell of a host not reached."""
        if "arrived" in message or "lost" in message or "leaves" in message:
            return True
        words = str(message.get("words", "")).strip().splitlines()[-1:]
        text = f"the host was not reached: {''.join(words) or message.get('code')}"
        name = self._reached.name_of(message["host"]) if self._reached is not None else ""
        for number in sorted(self._starting_numbers):
            if self._places[number].host == name:
                self._on_missing(number, text)
        return False

    def _on_missing(self, number: int, text: str) -> None:
        """A process has not started."""
        host = self._places[number].host
        cause = Failure(number, host, "early exit", text, time.time(), code=1)
        self._on_process_end(number, False, cause, unreachable=not addresses.is_own(host))

    def _on_limit(self, name: str) -> None:
        self._membership.on_limit(name)
        self._carry_out()

    def _on_rested(self, slot: Slot) -> None:
        self._membership.on_rested(slot)
        self._carry_out()

    # ---- actions --------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        starts: dict[str, list[tuple[int, int, int]]] = {}
        for action in self._membership.take():
            if self._ending.sent:
                continue
            if isinstance(action, actions.Start):
                slot = action.slot
                starts.setdefault(slot.host, []).append((action.number, slot.index, self._hosts[slot.host]))
                self._places[action.number] = slot
            else:
                self._do(action)
        for host, numbers in starts.items():
            self._start(host, numbers)
        self.status.shown = self._membership.processes()
        if self._membership.is_over() and not self._timers.waits(self._tidy_up):
            self._timers.at(time.monotonic() + TIDY_UP_IF_ELASTIC, self._tidy_up)
            self._discovery.stop()

    def _tidy_up(self) -> None:
        """The job is over. A process that has never arrived may still be there."""
        self._end(signal.SIGTERM)

    def _start(self, host: str, numbers: list[tuple[int, int, int]]) -> None:
        for number, _, _ in numbers:
            text = f"it has not started within {self._limits.start:g} s (--start-timeout)"
            self._starting_numbers.add(number)
            self._set_limit(number, self._limits.start, partial(self._on_missing, number, text))
        assert isinstance(self._mpiexec, OwnStart)
        try:
            self._mpiexec.add(host, numbers)
        except OSError as error:
            for number, _, _ in numbers:
                self._on_missing(number, str(error))

    def _do(self, action: actions.Action) -> None:
        if isinstance(action, actions.Form):
            self._form(action)
        elif isinstance(action, actions.Leave):
            self._answer(action.number, {"leave": action.why})
        elif isinstance(action, actions.Refuse):
            self._answer(action.number, {"error": action.text})
        elif isinstance(action, actions.End):
            self._end_process(action.number, action.kill)
        elif isinstance(action, actions.Announce):
            self._send(action.numbers, channel.UPDATED, {"timestamp": time.time(), "result": action.result})
        elif isinstance(action, actions.Break):
            self._break(action)
        elif isinstance(action, actions.Rest):
            self._timers.at(time.monotonic() + self._rest(action.failures), partial(self._on_rested, action.slot))
        elif isinstance(action, actions.Limit):
            seconds = self._plan.timeout if action.name == ELASTIC else self._limits.start
            self._timers.at(time.monotonic() + seconds if action.on else NEVER, self._limit_actions[action.name])
        elif isinstance(action, actions.Stop):
            self._stop(action.why)

    def _form(self, action: actions.Form) -> None:
        self._ranks = {number: rank for rank, number in enumerate(action.numbers)}
        waiting = [self._waiting.pop(number) for number in action.numbers]
        tables.send(self._workers, action.generation, waiting)
        if action.generation > 1:
            count = len(waiting)
            self._screen.note(f"the job goes on with {count} rank{'s' if count > 1 else ''}")
        if action.lost_commits is not None:
            commits = f" of {action.lost_commits} commits or more" if action.lost_commits else ""
            self._screen.note(
                f"no process is left that has the state{commits}: the training begins anew, or from the checkpoint "
                "that the program loads"
            )

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        worker, request = self._waiting.pop(number)
        self._workers.send(worker, channel.TABLE, {**answer, "request": request["request"]})

    def _send(self, numbers: tuple[int, ...], kind: int, message: dict[str, Any]) -> None:
        for number in numbers:
            if worker := self._workers.find(number):
                self._workers.send(worker, kind, message)

    def _end_process(self, number: int, kill: bool) -> None:
        how = signal.SIGKILL if kill else signal.SIGTERM
        if kill:
            text = "it has not come back to init() in time, so it is stopped or hangs"
            self._screen.note(f"{self._named(number)} is killed: {text}")
        if worker := self._workers.find(number):  # a process that is just starting is ended when it arrives
            self._workers.end_program(worker, how)
            seconds = UNANSWERED + (0 if kill else self._limits.grace)
            self._set_limit(number, seconds, partial(self._on_no_end, worker))

    def _on_no_end(self, worker: Worker) -> None:
        """Its supervisor kills a process that takes too long, so that one is stopped, too, or its host is frozen."""
        self._screen.note(f"{self._named(worker.rank)} has not ended, for its supervisor does not answer: given up")
        self._workers.give_up(worker, "its supervisor does not answer")

    def _break(self, action: actions.Break) -> None:
        lost = self._failures.get(action.lost)
        cause = lost or Failure(action.lost, self._places[action.lost].host, "early exit", action.text, time.time())
        fields = {**cause.to_fields(), "rank": self._ranks.get(action.lost, 0), "generation": action.generation}
        self._send(action.numbers, channel.FAIL, {**fields, "text": str(fields["text"])[:4096]})

    def _rest(self, failures: int) -> float:
        shortest, longest = self._plan.cooldown
        return float(min(longest, shortest * 2.0 ** min(failures - 1, 30)))

    def _stop(self, why: str) -> None:
        self._screen.note(f"the job has failed: {why}")
        first = self._membership.first_failure
        if first is not None:
            self._failure.cause = self._failures[first]
        self._ending.late = first is None
        self._end(signal.SIGTERM)
