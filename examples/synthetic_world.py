"""Who takes part in synthetic_benchmark.py: the ranks that answered, against those that a launcher announced."""

import os
import socket
from collections import Counter
from typing import Any

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # how launchers tell a process its rank


def announced_first() -> bool:
    """Whether this process is the first of those that a launcher started, or was started without one."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def check_size(size: int) -> None:
    """Ends the program where a launcher told of more ranks than have answered."""
    from sirtaki.starters import announced_size

    variable, number = announced_size()
    if number > size:
        raise SystemExit(
            f"{variable} announces {number} ranks, but an allreduce of ones counts {size}. No speed is reported, "
            f"for it would be that of separate copies. Use `sirtakirun -np {number}`, or the mpiexec of the MPI that "
            f"`sirtakirun --check` shows."
        )


class World:
    """The ranks that answered, and which of them speaks."""

    def __init__(self, benchmark) -> None:
        self.hvd = benchmark.hvd
        if self.hvd is None:  # each process for itself, however many there are
            self.rank, self.size = 0, 1
            self.leads = announced_first()
        else:
            self.rank, self.size = self.hvd.rank(), benchmark.count_ranks()
            self.leads = self.rank == 0
            check_size(self.size)
        cores = sorted(os.sched_getaffinity(0))
        facts = {"rank": self.rank, "host": socket.gethostname(), "threads": benchmark.threads, "cores": cores}
        self.ranks = self.gather(facts)
        self.hosts = Counter(rank["host"] for rank in self.ranks)

    def gather(self, facts: Any) -> list[Any]:
        """What each rank gave, by rank."""
        return self.hvd.allgather_object(facts) if self.hvd else [facts]

    def say(self, *lines: str) -> None:
        if self.leads and lines:
            print(*lines, sep="\n", flush=True)

    def crowded(self) -> list[str]:
        """A note for each host whose ranks have more compute threads than cores."""
        notes = []
        for host, ranks in self.hosts.items():
            here = [rank for rank in self.ranks if rank["host"] == host]
            threads, cores = sum(rank["threads"] for rank in here), len(set().union(*(rank["cores"] for rank in here)))
            if threads > cores:
                notes.append(
                    f"Note: {ranks} rank(s) with {threads} threads in all share {cores} core(s) of {host}; "
                    f"they slow each other down, whatever the communication costs."
                )
        return notes
