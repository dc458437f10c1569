"""`sirtakirun` itself, for jobs without MPI: it starts the ranks without any mpiexec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sirtaki.starters.starter import Starter

if TYPE_CHECKING:
    from sirtaki.starters.request import Request

_NUMBERS = ("RANK", "LOCAL_RANK", "LOCAL_SIZE")


class Own(Starter):
    name = "own"
    called = "sirtakirun"
    rank_variables = ("SIRTAKI_WORKER_RANK",)
    local_size_variables = ("SIRTAKI_WORKER_LOCAL_SIZE",)
    local_rank_variables = ("SIRTAKI_WORKER_LOCAL_RANK",)
    prefixes = ("SIRTAKI_WORKER_", *(f"HOROVOD_{name}" for name in _NUMBERS), "HOROVOD_SIZE")
    identity = r"SIRTAKI_WORKER_|HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE)$"

    def job(self, environ: Mapping[str, str]) -> str:
        return environ.get("SIRTAKI_WORKER_JOB", "")

    def command(self, program: str, request: Request) -> list[str]:
        return list(request.program)

    def variables(self, job: str, size: int, rank: int, local_rank: int, local_size: int) -> dict[str, str]:
        """By these a worker knows its rank. Horovod's programs read the same numbers under Horovod's names."""
        numbers = dict(zip(_NUMBERS, map(str, (rank, local_rank, local_size)), strict=True))
        result = {f"{prefix}_{name}": numbers[name] for prefix in ("SIRTAKI_WORKER", "HOROVOD") for name in numbers}
        return {**result, "HOROVOD_SIZE": str(size), "SIRTAKI_WORKER_JOB": job}
