"""What the membership of an elastic job asks its job to do."""

from __future__ import annotations

from dataclasses import dataclass

REMOVED, ADDED = 1, 2  # Horovod's HostUpdateResult; 3 is both


@dataclass(frozen=True)
class Slot:
    """A place for one process on a host."""

    host: str
    index: int


@dataclass(frozen=True)
class Start:
    """Start a process in this slot. number: of the process, never used twice."""

    number: int
    slot: Slot


@dataclass(frozen=True)
class Form:
    """Send the table to these processes, which wait in init(); they are ranks 0, 1, ... of the generation.
    lost_commits: those of the generation before, if none of its members is left to have its state.
    """

    generation: int
    numbers: tuple[int, ...]
    lost_commits: int | None = None


@dataclass(frozen=True)
class Leave:
    """Answer this process, which waits in init(): the job does not need it any more."""

    number: int
    why: str


@dataclass(frozen=True)
class Refuse:
    """Answer this process, which waits in init(), with an error."""

    number: int
    text: str


@dataclass(frozen=True)
class End:
    """End a process. kill: at once; otherwise it has the grace to end."""

    number: int
    kill: bool


@dataclass(frozen=True)
class Announce:
    """Announce to the members that hosts have changed: REMOVED, ADDED or both."""

    numbers: tuple[int, ...]
    result: int


@dataclass(frozen=True)
class Break:
    """Make the collectives of these members fail, since this generation has lost a member. text: how."""

    generation: int
    numbers: tuple[int, ...]
    lost: int
    text: str


@dataclass(frozen=True)
class Rest:
    """Call on_rested(slot) after a while. failures: of this slot in a row."""

    slot: Slot
    failures: int


@dataclass(frozen=True)
class Limit:
    """Call on_limit(name) after that limit, in place of an earlier call; not at all if `on` is false."""

    name: str
    on: bool


@dataclass(frozen=True)
class Stop:
    """The job has failed: end all processes."""

    why: str


Action = Start | Form | Leave | Refuse | End | Announce | Break | Rest | Limit | Stop
