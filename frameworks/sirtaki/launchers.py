"""What the launcher announced in the environment, to notice processes that were started together but do not know it."""

from __future__ import annotations

import os
from collections.abc import Mapping

_SIZES = ("SIRTAKI_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_SIZE")
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else 0


def _slurm(environment: Mapping[str, str]) -> tuple[str, int]:
    """Slurm sets its variables in batch scripts too, where this process stands alone; only a step's tasks count."""
    if "SLURM_PROCID" not in environment:
        return "", 0
    if "SLURM_STEP_NUM_TASKS" in environment:
        return "SLURM_STEP_NUM_TASKS", _number(environment, "SLURM_STEP_NUM_TASKS")
    in_step = "SLURM_STEP_ID" in environment or "SLURM_JOB_ID" not in environment
    if in_step or _number(environment, "SLURM_PROCID") > 0:
        return "SLURM_NTASKS", _number(environment, "SLURM_NTASKS")
    return "", 0


def announced_size(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """(variable, number of processes) of the launcher that announces most; ("", 0) when none does."""
    found = [(name, _number(environment, name)) for name in _SIZES]
    found += [(name, _number(environment, name) + 1) for name in RANKS if _number(environment, name) > 0]
    found.append(_slurm(environment))
    variable, size = max(found, key=lambda item: item[1])
    return (variable, size) if size else ("", 0)


def announced_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank as its launcher says; None without one."""
    return next((_number(environment, name) for name in RANKS if environment.get(name, "").isdigit()), None)


def announced_local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes on this host as the launcher says; 0 if it does not."""
    return max(_number(environment, name) for name in _LOCAL_SIZES)
