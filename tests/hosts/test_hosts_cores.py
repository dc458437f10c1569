"""Slots that are too few for the ranks, and cores that are."""

import os

from simulated import PLAIN, START, Hosts, last_line, report


def test_slots(hosts: Hosts) -> None:
    """C54: too few are refused with the arithmetic, before anybody is asked; more than the host has cores are fine."""
    done = hosts.run(*hosts.flags("n1:1,n2:2,nowhere:1", 5), *hosts.program("", PLAIN))
    assert done.returncode == 2
    assert "5 ranks, but the hosts offer n1:1 + n2:2 + nowhere:1 = 4 slots" in last_line(done), report(done)
    cores = len(os.sched_getaffinity(0))
    flags = hosts.flags(f"n1:1,n2:{cores + 2},n3:1", cores + 4)
    done = hosts.run(*flags, *hosts.program("print(rank, os.environ.get('OMP_NUM_THREADS'))", PLAIN))
    assert done.returncode == 0, report(done)
    threads = ["None", *["1"] * (cores + 2), "None"]  # a rank alone keeps its libraries' defaults
    assert sorted(done.stdout.decode().splitlines()) == [f"[{r}] {r} {count}" for r, count in enumerate(threads)]


def test_more_ranks_than_cores(hosts: Hosts) -> None:
    """C70: one core for four ranks, two of them on one host. The limit of the job is what fails this test."""
    core = min(os.sched_getaffinity(0))
    body = """
import numpy
for step in range(200):
    mine = numpy.full(256, rank + step, numpy.float32)
    summed = numpy.empty_like(mine)
    tensor = (mine.ctypes.data, summed.ctypes.data, core.DTYPES["float32"], mine.shape, -1)
    core.submit(core.VERBS["allreduce"], "x", [tensor], op=core.OPS["sum"]).wait()
    assert (summed == 6 + 4 * step).all(), (rank, step)
print("done on", os.sched_getaffinity(0))
"""
    start = f"import os; os.sched_setaffinity(0, {{{core}}})\n{START}"
    done = hosts.run(*hosts.flags("n1:1,n2:2,n3:1", 4), *hosts.program(body, start))
    assert done.returncode == 0, report(done)
    assert sorted(done.stdout.decode().splitlines()) == [f"[{rank}] done on {{{core}}}" for rank in range(4)]
