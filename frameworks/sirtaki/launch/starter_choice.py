"""Chooses what starts the ranks: an mpiexec, a scheduler's command, or sirtakirun itself."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace

from sirtaki import settings, starters
from sirtaki.launch.command_line import elastic_options
from sirtaki.libraries import mpi_library


def choose(chosen: Namespace) -> tuple[starters.Starter, str, str]:
    """(starter, its program, the MPI library). ValueError or MpiNotFoundError."""
    if _does_without_mpi(chosen):
        return starters.OWN, "", ""
    library = mpi_library.find()
    for starter in (starter for starter in starters.STARTERS if starter.places_ranks):
        program = shutil.which(starter.called)
        if chosen.launcher == starter.called and not program:
            raise ValueError(f"--launcher {starter.called}: there is no {starter.called} in PATH")
        is_wanted = chosen.launcher == "auto" and starter.is_in_allocation(os.environ)
        if program and (is_wanted or chosen.launcher == starter.called):
            return starter, program, library.path
    found = starters.identify(library.mpiexec)[0] if library.mpiexec is not None else None
    if library.mpiexec is None or found is None:
        raise mpi_library.MpiNotFoundError(
            f"no mpiexec belongs to {library.path} ({library.reason}): looked beside it and in PATH; "
            f"put the bin directory of that MPI into PATH, or choose another MPI with {mpi_library.VARIABLE}"
        )
    return found, library.mpiexec, library.path


def _does_without_mpi(chosen: Namespace) -> bool:
    """Whether the ranks do without MPI, so that no mpiexec is needed. ValueError if --launcher contradicts."""
    control = settings.control()
    without = bool(chosen.use_gloo) or elastic_options.is_elastic(chosen)
    without = without or (control == "sockets" and not chosen.use_mpi)
    if without and control == "mpi":
        raise ValueError("SIRTAKI_CONTROL=mpi contradicts --gloo and the options of elastic jobs, which do without MPI")
    if without and chosen.launcher != "auto":
        raise ValueError(f"--launcher {chosen.launcher} starts ranks that use MPI, but this job does without it")
    if without or control or chosen.use_mpi or chosen.launcher != "auto" or settings.look_up("MPI")[1]:
        return without
    try:
        mpi_library.find()
    except mpi_library.MpiNotFoundError:
        return True
    return False
