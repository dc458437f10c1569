"""The interface of a starter of ranks: an MPI's mpiexec, a scheduler's command, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sirtaki.starters.request import Request


class Starter:
    """One way to start ranks. A new way is a subclass that is added to STARTERS in __init__.py.

    The first three methods are for the launcher, which searches for the program and for the MPI library that needs it.
    With the others a rank finds itself in the environment.
    """

    name = ""
    called = "mpiexec"  # in messages about a job, and in --launcher
    places_ranks = False  # a scheduler's command, which itself chooses hosts of the allocation
    programs: tuple[str, ...] = ()  # names of the program, the best first
    libraries: tuple[str, ...] = ()  # names of the MPI libraries whose ranks only this starter can start
    word = ""  # value of SIRTAKI_MPI for the system's library of this MPI, which has one of the next names
    libraries_of_word: tuple[str, ...] = ()

    rank_variables: tuple[str, ...] = ()
    size_variables: tuple[str, ...] = ()
    local_size_variables: tuple[str, ...] = ()  # number of ranks on this host
    local_rank_variables: tuple[str, ...] = ()  # number of this process among them
    prefixes: tuple[str, ...] = ()  # of variables that it sets for each rank; the launcher's values are ignored
    identity = ""  # regular expression: variables by which a rank is part of a job; a job inside it must not have them
    descriptor_variable = ""  # holds the number of the socket by which the MPI library talks to the starter

    # The starter's exit codes when it has killed ranks. Any other code is the argument of MPI_Abort.
    codes_of_killed_ranks: tuple[int, ...] = (0, 9, 15, 128 + 9, 128 + 15, 255)
    # What to do if the starter announced several processes and MPI sees one.
    advice = (
        "the launcher belongs to another MPI. Start with sirtakirun or with this MPI's own mpiexec, or choose the "
        "launcher's library with SIRTAKI_MPI."
    )

    def is_program(self, version: str) -> bool:
        """Whether this text, printed by a program for --version, is that of this starter."""
        return False

    def described(self, version: str) -> str:
        """One line about the program, from its --version text."""
        return version.partition("\n")[0]

    def owns_library(self, path: str) -> bool:
        """Whether the name of this MPI library shows that only this starter can start its ranks."""
        names = (os.path.basename(path), os.path.basename(os.path.realpath(path)))
        return any(re.match(re.escape(known) + r"(\.|$)", name) for known in self.libraries for name in names)

    def rank(self, environ: Mapping[str, str]) -> int | None:
        """This process's rank; None if this starter did not start it."""
        return next((number(environ, name) for name in self.rank_variables if is_number(environ, name)), None)

    def size(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """(variable, number of ranks of the job in it); ("", 0) if this starter does not announce it.

        If only the rank is known, the size is at least rank + 1.
        """
        found = [(name, number(environ, name)) for name in self.size_variables]
        found += [(name, number(environ, name) + 1) for name in self.rank_variables if number(environ, name) > 0]
        return largest(found)

    def local_size(self, environ: Mapping[str, str]) -> int:
        """Number of ranks on this host; 0 if unknown."""
        return max((number(environ, name) for name in self.local_size_variables), default=0)

    def local_rank(self, environ: Mapping[str, str]) -> int | None:
        """This process's number among the ranks of this host; None if unknown."""
        return next((number(environ, name) for name in self.local_rank_variables if is_number(environ, name)), None)

    def job(self, environ: Mapping[str, str]) -> str:
        """Identifies the job among those of this host, the same for all its ranks there; "" if unknown."""
        return ""

    def is_stranger_to(self, version: Callable[[], str], environ: Mapping[str, str]) -> bool:
        """Whether this starter started several ranks that this MPI library cannot find, so that it would abort.

        version: returns the library's version text.
        """
        return False

    def is_identity(self, name: str, environ: Mapping[str, str]) -> bool:
        """Whether this variable makes the process part of the job around it."""
        return bool(self.identity) and re.match(self.identity, name) is not None

    def is_in_allocation(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs in an allocation of this starter's scheduler."""
        return False

    def allocated_hosts(self, environ: Mapping[str, str]) -> list[str]:
        """The hosts of that allocation; empty if unknown."""
        return []

    def command(self, program: str, request: Request) -> list[str]:
        """The command line that starts the ranks. May set variables in `request.environ`."""
        raise NotImplementedError(f"{self.name or type(self).__name__} starts no ranks")


def is_number(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").isdigit()


def number(environ: Mapping[str, str], name: str) -> int:
    """The number in a variable, 0 without one."""
    return int(environ[name]) if is_number(environ, name) else 0


def largest(found: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """The first of (variable, size) with the largest size; ("", 0) if none is above 0."""
    variable, size = max(found, key=lambda item: item[1], default=("", 0))
    return (variable, size) if size else ("", 0)
