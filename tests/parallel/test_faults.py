"""Programs that go wrong on some rank end as a whole, soon, with a code other than 0 and the cause in words."""

import json
import re
import subprocess
import sys

import jobs
import pytest

QUICK = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "4"}
WITH_TORCH = "import os, sys, time, torch, sirtaki.torch as hvd\nhvd.init()\nrank = hvd.rank()\n"
# Loading torch takes most of a job's time; what most of these tests need of a collective is that ranks meet in it.
START = """import os, sys, time, sirtaki as hvd
from sirtaki.native import core
def meet(name):
    core.submit(core.VERBS["barrier"], name, [], site=f"program.py:{sys._getframe(1).f_lineno}").wait()
hvd.init()
rank = hvd.rank()
"""


def run(count, body, limit=60, start=START, **extra):
    return jobs.run_script(count, start + body, limit, extra)


def test_stray_rank():
    """C11: from step 10 on, rank 1 reduces something else."""
    body = """
for step in range(20):
    hvd.allreduce(torch.ones(2), name="b" if rank == 1 and step >= 10 else "a")
"""
    ended = run(3, body, start=WITH_TORCH, **QUICK)
    assert ended.code not in (0, None), ended.output
    for rank, name in enumerate("aba"):
        line = f"rank {rank} "
        assert any(line in text and f"allreduce.{name}" in text for text in ended.output.splitlines()), ended.output
    assert "lacks rank 1.\n" in ended.output and "locked plan" not in ended.output, ended.output
    blamed = "the first one missing is rank 1 on host "
    assert any(blamed in text and text.endswith(", which waits in program.py:6.") for text in ended.output.splitlines())
    for rank in range(3):
        assert f"[rank {rank}] " in ended.output


def test_a_layer_that_not_all_ranks_have():
    """The ranks' parameters are told by name on every rank, not an inner tensor."""
    body = """
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(2 + rank)))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
try:
    model(torch.ones(1, 2)).sum().backward()
except hvd.SirtakiInternalError as error:
    print(f"rank {rank} got {error}", flush=True)
    raise
"""
    ended = run(2, body, start=WITH_TORCH, **QUICK)
    assert ended.code not in (0, None), ended.output
    text = (
        "The ranks do not hold the same parameters to be reduced (rank 0: 4; rank 1: 6): only rank 1 has 2.weight, 2."
    )
    for rank in range(2):
        assert f"rank {rank} got {text}bias. " in ended.output, ended.output


def test_a_rank_that_never_comes():
    """C16: a warning, then an end, with the Python stack of the rank that is missing."""
    body = """
def busy():
    time.sleep(100)
if rank == 1:
    busy()
meet("lonely")
"""
    ended = run(2, body, **QUICK)
    assert ended.code not in (0, None), ended.output
    assert "has waited" in ended.output and "lonely" in ended.output
    assert "in busy" in ended.output, ended.output


def test_a_late_rank_is_no_fault():
    """C17: a warning that names who is late, one line when it goes on, code 0."""
    body = """
meet("first")
if rank == 0:
    time.sleep(3.5)
meet("second")
"""
    ended = run(2, body, SIRTAKI_STALL_CHECK_TIME_SECONDS="1", SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS="40")
    assert ended.code == 0, ended.output
    late = [line for line in ended.output.splitlines() if "has waited" in line]
    assert 1 <= len(late) <= 4 and all("rank 0" in line for line in late), ended.output
    assert len([line for line in ended.output.splitlines() if "continues after" in line]) == 1, ended.output


def test_stall_check_can_be_turned_off():
    body = """
if rank == 0:
    time.sleep(2.5)
meet("late")
"""
    ended = run(2, body, **QUICK, SIRTAKI_STALL_CHECK_DISABLE="1")
    assert ended.code == 0 and "waited" not in ended.output, ended.output


@pytest.mark.parametrize("where", ("before its first collective", "after some"))
def test_an_exception_on_one_rank(where):
    """C23: by plain mpiexec; the traceback with the rank in front, all ranks end, code not 0."""
    body = "if rank == 2:\n    raise ValueError('boom')\nwhile True: meet('x')\n"
    if where == "after some":
        body = "for _ in range(3): meet('x')\n" + body
    ended = run(3, body)
    assert ended.code not in (0, None), ended.output
    assert any(line.startswith("[rank 2] ValueError: boom") for line in ended.output.splitlines()), ended.output
    assert any(line.startswith("[rank 2]   File") and "program.py" in line for line in ended.output.splitlines())
    for rank in range(2):  # a line each
        told = [line for line in ended.output.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert len(told) == 1 and "because rank 2 on host " in told[0] and "ValueError: boom" in told[0], ended.output


def test_each_rank_fails_by_itself():
    """No rank's own exception is blamed on another, unless it was raised for what Sirtaki told of that one."""
    body = """
if rank < 2:
    raise ValueError("no data")
try:
    meet("x")
except hvd.SirtakiInternalError as error:
    raise RuntimeError("own words") from error
"""
    ended = run(3, body)
    told = {rank: [t for t in ended.output.splitlines() if t.startswith(f"[rank {rank}] ended")] for rank in range(3)}
    first = 1 if told[0] else 0
    (own,), (caught,) = told[1 - first], told[2]
    assert f"program.py:9 by ValueError: no data, after rank {first} on host " in own, ended.output
    assert f"program.py:13 by RuntimeError: own words, because rank {first} on host " in caught, ended.output


def test_the_programs_own_hooks_are_called():
    body = """
import atexit
def before(kind, error, trace):
    print("own hook", error, flush=True)
hvd.shutdown()
sys.excepthook = before
hvd.init()
raise RuntimeError("late")
"""
    ended = run(1, body)
    assert ended.code == 1, ended.output
    assert "own hook late" in ended.output and "[rank 0] RuntimeError: late" in ended.output
    replaced = run(2, "if rank == 0:\n    sys.excepthook = lambda *a: print('mine')\n    raise KeyError(1)\nmeet('x')")
    assert replaced.code not in (0, None) and "mine" in replaced.output, replaced.output


def test_interrupt():
    ended = run(2, "if rank == 1:\n    raise KeyboardInterrupt\nmeet('x')\n")
    assert ended.code not in (0, None), ended.output
    assert "[rank 1] KeyboardInterrupt" in ended.output


def test_leaving_early():
    """C58: rank 1 ends well while rank 0 waits."""
    ended = run(2, "if rank == 1:\n    sys.exit(0)\nmeet('x')\n")
    assert ended.code not in (0, None), ended.output
    assert "rank 1 left early" in ended.output, ended.output


def test_a_failure_that_the_program_catches():
    body = """
try:
    if rank == 1: core.fail("exception", "ValueError: boom")
    meet("x")
except hvd.SirtakiInternalError:
    pass
"""
    ended = run(2, body)
    assert ended.code == 1, ended.output
    for rank in range(2):
        (told,) = [line for line in ended.output.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert "ended after the job had failed, because rank 1 on host " in told and "ValueError: boom" in told, told


def test_a_rank_is_killed():
    """C15: by plain mpiexec, which ends the others."""
    ended = run(2, "meet('x')\nif rank == 0: os.kill(os.getpid(), 9)\nwhile True: pass\n")
    assert ended.code not in (0, None), ended.output


def test_a_rank_dies_and_the_starter_ends_no_other():
    """As by srun's default. The ranks of its host notice it."""
    body = """
meet("x")
if rank == 1: os.kill(os.getpid(), 9)
try:
    meet("late")
except hvd.HorovodInternalError as error:
    os.write(1, f"ended: {error}\\n".encode())  # in one piece, beside the other rank's
    sys.exit(5)
"""
    ended = jobs.run_script(3, START + body, through=jobs.UNNOTICED)
    assert ended.code not in (0, None), ended.output
    assert len(re.findall("ended: rank 1 on host .* has died", ended.output)) == 2, ended.output
    assert "waited for it: barrier 'late' from program.py:11" in ended.output, ended.output


@pytest.mark.parametrize("code", (0, 3))
def test_a_rank_exits_at_once(code):
    """C15, C58: the others learn who it was and where, and the job's code is the rank's, never 0."""
    body = f"""
meet("x")
if rank == 2:
    if not (child := os.fork()): os._exit({code})  # says nothing
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {code}
    os._exit({code})
if rank == 1:
    while True: pass
meet("y")
"""
    ended = run(3, body)
    assert ended.code == (code or 1), ended.output
    own = f"[rank 2] ended in program.py:12 by os._exit({code}) without shutdown() on host "
    assert ended.output.count(own) == ended.output.count("[rank 2]") == 1, ended.output
    (told,) = [line for line in ended.output.splitlines() if line.startswith("[rank 0] ")]
    assert "because rank 2 on host " in told and f"in program.py:12: left early: os._exit({code})" in told, told
    alone = run(1, f"os._exit({code})\n")
    assert alone.code == code and "ended" not in alone.output, alone


def test_not_all_call_init():
    """C63: by plain mpiexec, whose MPI waits without a limit."""
    source = "import os, time\nif os.environ['PMI_RANK'] == '1': time.sleep(300)\nimport sirtaki as hvd\nhvd.init()\n"
    ended = jobs.run_script(2, source, 150, {"SIRTAKI_START_TIMEOUT": "2"})
    assert ended.code not in (0, None), ended.output
    assert "1 of 2 ranks arrived within 2 s (SIRTAKI_START_TIMEOUT), missing: rank 1" in ended.output


def test_a_rank_is_stopped_within_init():
    stop = "if os.environ['PMI_RANK'] == '1': core.init = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)\nhvd.init()"
    ended = jobs.run_script(
        2, "import signal\n" + START.replace("hvd.init()", stop), 60, {"SIRTAKI_START_TIMEOUT": "2"}
    )
    assert ended.code not in (0, None), ended.output
    assert "2 of 2 ranks arrived within 2 s" in ended.output, ended.output
    assert re.search(r", but MPI did not start: rank 1, process \d+, is stopped", ended.output), ended.output


def test_two_processes_of_one_rank():
    """The second is refused by name; the job of the first ones goes on, and a third may follow them."""
    source = """
import os, subprocess, sys
import sirtaki as hvd
hvd.init()
if len(sys.argv) == 1:
    twin = subprocess.run([sys.executable, __file__, "twin"], capture_output=True, text=True)
    assert twin.returncode == 1, twin
    expected = f"rank {hvd.rank()} of 2 has joined already, as process {os.getpid()} on this host"
    assert expected in twin.stderr and "Only one process of each rank" in twin.stderr, twin.stderr
for _ in range(2):
    hvd.shutdown()
    hvd.init()
print("all well")
"""
    ended = jobs.run_script(2, source)
    assert ended.code == 0 and ended.output.count("all well") == 2, ended.output


def test_the_programs_own_handler_of_usr1_is_kept():
    """One that was there before init, and one that comes after it; a child that was forked has ours no longer."""
    body = """
import signal
got = []
if rank == 0:
    child = os.fork()
    if child == 0:
        time.sleep(60)
    os.kill(child, signal.SIGUSR1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGUSR1
    signal.signal(signal.SIGUSR1, lambda *a: got.append("later"))
    os.kill(os.getpid(), signal.SIGUSR1)
else:
    os.kill(os.getpid(), signal.SIGUSR1)
meet("x")
time.sleep(0.5)
os.write(1, f"{rank} {got} {before}\\n".encode())
"""
    start = "import signal\nbefore = []\nimport os\n"
    start += (
        "if os.environ['PMI_RANK'] == '1':\n    signal.signal(signal.SIGUSR1, lambda *a: before.append('before'))\n"
    )
    ended = run(2, body, start=start + START)
    assert ended.code == 0, ended.output
    assert "0 ['later'] []" in ended.output and "1 [] ['before']" in ended.output, ended.output
    assert "status of the job" not in ended.output


SRUN = """
import os, sys
if "PMI_RANK" not in os.environ:
    words = sys.argv[1:]
    mpiexec = words.pop(0)
    os.execv(mpiexec, [mpiexec, "-n", "3", sys.executable, __file__, mpiexec, *words])
rank = os.environ["PMI_RANK"]
os.environ.update(SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_NTASKS="3", SLURM_PROCID=rank, SLURM_LOCALID=rank)
if rank == "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["GIVEN_CORES"] = str(os.sched_getaffinity(0))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@pytest.mark.parametrize("ending", ("well", "by an exception"))
def test_srun(ending, tmp_path):
    """C60: a scheduler's own starter, which sets Slurm's variables and PMI's; the affinity mask is as it was given."""
    source = (
        START
        + """
assert hvd.size() == 3 and rank == int(os.environ["SLURM_PROCID"]), (hvd.size(), rank)
assert hvd.local_rank() == int(os.environ["SLURM_LOCALID"])
assert str(os.sched_getaffinity(0)) == os.environ["GIVEN_CORES"], os.sched_getaffinity(0)
os.write(1, f"well {rank}\\n".encode())
meet("x")
"""
    )
    if ending != "well":
        source += "if rank == 2: raise ValueError('boom')\nmeet('y')\n"
    srun, program = tmp_path / "srun.py", tmp_path / "program.py"
    srun.write_text(SRUN)
    program.write_text(source)
    words = [sys.executable, str(srun), jobs.command(3, ["x"])[0], str(program)]
    ended = subprocess.run(words, env=jobs.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.count("well ") == 3, ended
    assert (ended.returncode == 0) == (ending == "well"), ended
    assert ending == "well" or "[rank 2] ValueError: boom" in ended.stderr


@pytest.mark.parametrize(
    ("announced", "advice"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMIX_NAMESPACE": "job"},
            "the launcher's library with SIRTAKI_MPI",
        ),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, "Start with srun --mpi=pmi2"),
    ],
    ids=["of another MPI", "by srun without its plugin"],
)
def test_only_one_of_several_announced(announced, advice):
    """C8, C60: the starter's variables announce two processes. This MPI sees one, or would abort."""
    source = "import sirtaki as hvd\nhvd.init()\nprint('trained alone')\n"
    ended = subprocess.run(
        [sys.executable, "-c", source], env=jobs.environment(announced), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0 and "trained alone" not in ended.stdout
    (size,) = (name for name in announced if name.endswith(("SIZE", "NTASKS")))
    assert f"{size}=2" in ended.stderr, ended.stderr
    assert "MPI sees only this one" in ended.stderr or "the MPI in use cannot find them" in ended.stderr, ended.stderr
    assert "MPICH Version" in ended.stderr and "Abort(" not in ended.stderr, ended.stderr
    assert ".so" in ended.stderr and advice in ended.stderr, ended.stderr


def test_ranks_of_other_versions_and_settings_are_refused():
    body = """
import os
mine = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
os.environ["SIRTAKI_DYNAMIC_PROCESS_SETS"] = os.environ["SIRTAKI_CHECK_PARAMETERS"] = mine
import sirtaki as hvd
from sirtaki import runtime
runtime.__version__ = f"9.{mine}"
hvd.init()
"""
    ended = jobs.run_script(2, body)
    assert ended.code not in (0, None), ended.output
    for number, dynamic in enumerate(("off", "on")):
        assert f"Sirtaki 9.{number} (" in ended.output, ended.output
        expected = f"dynamic process sets {dynamic}, SIRTAKI_CHECK_PARAMETERS={number}"
        assert expected in ended.output, ended.output


def test_idle_ranks_use_no_cpu():
    """C66: the affinity mask stays, and nothing runs while nothing is asked for."""
    body = """
import json, psutil
mask = sorted(os.sched_getaffinity(0))
meet("x")
me = psutil.Process()
time.sleep(0.5)
before = me.cpu_times()
time.sleep(3)
after = me.cpu_times()
used = after.user + after.system - before.user - before.system
print(json.dumps({"rank": rank, "used": used / 3, "same": mask == hvd_mask_before}), flush=True)
meet("y")
"""
    ended = run(2, body, start="import os\nhvd_mask_before = sorted(os.sched_getaffinity(0))\n" + START)
    assert ended.code == 0, ended.output
    reports = [json.loads(text) for text in re.findall(r"{[^}]*}", ended.output)]  # mpiexec may join lines
    assert len(reports) == 2
    for report in reports:
        assert report["same"]
        assert report["used"] < 0.01, report
