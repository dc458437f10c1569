"""Ranks on three hosts that a scheduler's own starter brings there."""

import os
import sys

from simulated import PLAIN, Hosts, report

# Runs `srun -n 3 [options] program ...` as Slurm would: one task on each host, with the environment of srun.
SRUN = """#!{python} -IS
import os, subprocess, sys
if sys.argv[1] == "--mpi=list":
    print("MPI plugin types are... pmi2"); sys.exit()
words = sys.argv[1:]
while words[0] != {python!r}:
    del words[0]
known = {{"SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}}
tasks = [
    subprocess.Popen([*enter, *words], env={{**os.environ, **known, "SLURM_PROCID": str(r), "SLURM_NODEID": str(r)}})
    for r, enter in enumerate({enter!r})
]
sys.exit(max(task.wait() for task in tasks))
"""


def test_allocation_of_slurm_needs_no_ssh(networks: Hosts) -> None:
    tools = networks.folder / "tools"
    tools.mkdir()
    enter = [networks.machine.enter(name) for name in networks.machine.names]
    (tools / "srun").write_text(SRUN.format(python=sys.executable, enter=enter))
    (tools / "ssh").write_text("#!/bin/sh\necho 'ssh was called' >&2; exit 255\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    allocation = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}
    program = networks.program(
        "import socket\nprint(os.environ['SLURM_PROCID'], socket.gethostname(), sys.argv[2])", PLAIN
    )
    done = networks.run("-np", "3", *program, "a b", **allocation)
    assert done.returncode == 0, report(done)
    assert sorted(done.stdout.decode().splitlines()) == [f"[{r}] {r} n{r + 1} a b" for r in range(3)]
    done = networks.run("-np", "3", "--dry-run", *program, **allocation)
    assert b"other hosts connect to: 10.77.0.1 port " in done.stdout, report(done)


# Sets for each task what Slurm does beside what its plugin for MPI sets, and leaves one of them a single core.
TASK = """
import os, sys
rank = os.environ["PMI_RANK"]
os.environ.update(SLURM_NTASKS="4", SLURM_PROCID=rank, SLURM_LOCALID="1" if rank == "2" else "0")
if rank == "2": os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["GIVEN_CORES"] = str(os.sched_getaffinity(0))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_tasks_without_sirtakirun(hosts: Hosts) -> None:
    """C60: each finds its rank, and the cores that it was given stay its own."""
    body = """
assert (rank, hvd.size()) == (int(os.environ["SLURM_PROCID"]), 4), (rank, hvd.size())
assert hvd.local_rank() == int(os.environ["SLURM_LOCALID"]) and hvd.local_size() == (2 if rank in (1, 2) else 1)
meet("x")
assert str(os.sched_getaffinity(0)) == os.environ["GIVEN_CORES"], os.sched_getaffinity(0)
os.write(1, f"well {rank}\\n".encode())
"""
    task = hosts.folder / "task.py"
    task.write_text(TASK)
    python, *program = hosts.program(body)
    done = hosts.run_by_mpiexec("n1:1,n2:2,n3:1", 4, python, str(task), *program)
    assert done.returncode == 0, report(done)
    assert sorted(done.stdout.decode().split()) == ["0", "1", "2", "3", *["well"] * 4], report(done)
