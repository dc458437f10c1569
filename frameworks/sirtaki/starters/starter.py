"""The interface of what starts the ranks of a job: an MPI's own mpiexec, a scheduler's command, or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sirtaki.starters.request import Request


class Starter:
    """One way in which ranks are started. A new way is a subclass that is added to STARTERS in __init__.py.

    The first three are for the launcher, which looks for the program and for the MPI library that needs it; the others
    say how a rank recognises itself in the environment.
    """

    name = ""
    called = "mpiexec"  # in messages about a job, and in --launcher
    places_ranks = False  # on the hosts of an allocation by itself, as a scheduler's command does
    programs: tuple[str, ...] = ()  # names of the program, the best first
    libraries: tuple[str, ...] = ()  # names of the MPI libraries whose ranks only this starter can start
    word = ""  # in SIRTAKI_MPI: the system's own library of this MPI, which has one of these names
    libraries_of_word: tuple[str, ...] = ()

    rank_variables: tuple[str, ...] = ()
    size_variables: tuple[str, ...] = ()
    local_size_variables: tuple[str, ...] = ()  # number of ranks on this host
    local_rank_variables: tuple[str, ...] = ()  # number of this process among them
    prefixes: tuple[
        str, ...
    ] = ()  # of variables that it sets for each rank, so that the launcher's values do not count
    identity = ""  # regular expression: variables by which a rank is part of a job; a job inside it must not have them
    descriptor_variable = ""  # holds the number of the socket by which the MPI library talks to the starter

    # Exit codes of the starter that say only that it has killed ranks. Others are the argument of MPI_Abort.
    codes_of_killed_ranks: tuple[int, ...] = (0, 9, 15, 128 + 9, 128 + 15, 255)
    # What to do if the starter announced several processes and MPI sees one.
    advice = (
        "the launcher belongs to another MPI. Start with sirtakirun or with this MPI's own mpiexec, or choose the "
        "launcher's library with SIRTAKI_MPI."
    )

    def is_program(self, version: str) -> bool:
        """Whether a program that prints this text for --version is this starter's."""
        return False

    def described(self, version: str) -> str:
        """One line about the program, from what it prints for --version."""
        return version.partition("\n")[0]

    def owns_library(self, path: str) -> bool:
        """Whether the name of this MPI library says that this starter's program must start its ranks."""
        names = (os.path.basename(path), os.path.basename(os.path.realpath(path)))
        return any(re.match(re.escape(known) + r"(\.|$)", name) for known in self.libraries for name in names)

    def rank(self, environ: Mapping[str, str]) -> int | None:
        """This process's rank; None if this starter did not start it."""
        return next((number(environ, name) for name in self.rank_variables if is_number(environ, name)), None)

    def size(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """(variable that says so, number of ranks of the job); ("", 0) if this starter says nothing.

        Where only the rank is known, there are at least as many as its number says.
        """
        found = [(name, number(environ, name)) for name in self.size_variables]
        found += [(name, number(environ, name) + 1) for name in self.rank_variables if number(environ, name) > 0]
        return largest(found)

    def local_size(self, environ: Mapping[str, str]) -> int:
        """Number of ranks on this host; 0 if this starter does not say it."""
        return max((number(environ, name) for name in self.local_size_variables), default=0)

    def local_rank(self, environ: Mapping[str, str]) -> int | None:
        """This process's number among the ranks of this host; None if this starter does not say it."""
        return next((number(environ, name) for name in self.local_rank_variables if is_number(environ, name)), None)

    def job(self, environ: Mapping[str, str]) -> str:
        """Names the job among those of this host, the same for all its ranks there; "" if that is not known."""
        return ""

    def is_stranger_to(self, version: Callable[[], str], environ: Mapping[str, str]) -> bool:
        """Whether it has started several ranks that this MPI library cannot find, and which would make it abort.

        version: gives the library's own words about itself.
        """
        return False

    def is_identity(self, name: str, environ: Mapping[str, str]) -> bool:
        """Whether this variable makes the process a part of the job around it."""
        return bool(self.identity) and re.match(self.identity, name) is not None

    def is_in_allocation(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs in an allocation of this starter's scheduler."""
        return False

    def allocated_hosts(self, environ: Mapping[str, str]) -> list[str]:
        """The hosts of that allocation; empty if they are not known."""
        return []

    def command(self, program: str, request: Request) -> list[str]:
        """The command line that starts the ranks. May set variables in `request.environ`."""
        raise NotImplementedError(f"{self.name or type(self).__name__} starts no ranks")


def is_number(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").isdigit()


def number(environ: Mapping[str, str], name: str) -> int:
    """The number in a variable, 0 if there is none."""
    return int(environ[name]) if is_number(environ, name) else 0


def largest(found: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """The first of (variable, size) with the largest size; ("", 0) if none is above 0."""
    variable, size = max(found, key=lambda item: item[1], default=("", 0))
    return (variable, size) if size else ("", 0)
