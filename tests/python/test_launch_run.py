"""sirtakirun on 1 to 4 ranks of this host: arguments, environment, threads, exit codes."""

import ast
import ctypes
import glob
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ALL_MPIS, FRAMEWORKS, MPIS, command, environment, program, run

from sirtaki import starters
from sirtaki.host import cores, threads
from sirtaki.job.protocol import spec
from sirtaki.launch.command_line import standard_input

ARGUMENTS = [
    "a b",
    "$HOME",
    "it's",
    "*",
    "",
    "two\nlines",
    "ünïcödé ☃",
    '"',
    "\\",
    "--np",
    "--",
    os.fsdecode(b"\xff\xfe"),
]
CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("mpi", ALL_MPIS)
def test_arguments_and_environment_arrive_byte_equal(mpi: str, tmp_path: Path) -> None:
    code = """
import json
environ = {n.decode("latin-1"): v.decode("latin-1") for n, v in os.environb.items() if n.startswith(b"T_")}
with open(sys.argv[1] + "/" + str(rank), "w") as file:
    json.dump([[os.fsencode(word).decode("latin-1") for word in sys.argv[2:]], environ, os.getcwd()], file)
"""
    extra = {f"T_{number}": word for number, word in enumerate(ARGUMENTS)}
    extra |= {"T_%odd-name.1": "x", "T_BASH_FUNC_f%%": "() {  echo hi\n}"}
    done = run("-np", "3", *program(code, str(tmp_path), *ARGUMENTS), mpi=mpi, **extra)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        words, environ, cwd = json.loads((tmp_path / str(rank)).read_text())
        assert [word.encode("latin-1") for word in words] == [os.fsencode(word) for word in ARGUMENTS]
        sent = {os.fsencode(name): os.fsencode(value) for name, value in extra.items()}
        assert {n.encode("latin-1"): v.encode("latin-1") for n, v in environ.items()} == sent
        assert cwd == os.getcwd()


def test_environment_entry_without_a_name_is_skipped_with_a_note() -> None:
    words = [word.encode() for word in command("-np", "2", *program("print('ran', os.environ['AFTER'])"))]
    entries = [b"=nameless", b"AFTER=here"] + [f"{n}={v}".encode() for n, v in environment().items()]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        array = ctypes.c_char_p * (len(words) + 1), ctypes.c_char_p * (len(entries) + 1)
        ctypes.CDLL(None).execve(words[0], array[0](*words, None), array[1](*entries, None))
        os._exit(99)
    os.close(write)
    with open(read, "rb") as stream:
        output = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert output.count(b"skipped an environment variable without a name") == 1
    assert b"[0] ran here" in output and b"[1] ran here" in output


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_runs_without_hosts_even_beyond_the_cores(ranks: int, mpi: str) -> None:
    names = "('PMI_SIZE', 'OMPI_COMM_WORLD_SIZE')"
    code = f"print(rank, *[os.environ[n] for n in {names} if n in os.environ], os.environ['SIRTAKI_SIZE'])"
    done = run("-np", str(ranks), *program(code), mpi=mpi)
    assert done.returncode == 0, done.stderr
    prefix = (lambda rank: f"[{rank}] ") if ranks > 1 else (lambda rank: "")
    assert sorted(done.stdout.decode().splitlines()) == [f"{prefix(r)}{r} {ranks} {ranks}" for r in range(ranks)]
    notes = [line for line in done.stderr.decode().splitlines() if "share" in line]
    assert len(notes) == (1 if ranks > CORES else 0), done.stderr


def test_threads_default_to_cores_for_each_local_rank_with_one_note() -> None:
    code = "print(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'])"
    done = run("-np", "2", *program(code))
    share = max(1, CORES // 2)
    assert sorted(done.stdout.decode().splitlines()) == [f"[0] {share} {share}", f"[1] {share} {share}"]
    assert done.stderr.count(b"OMP_NUM_THREADS") == 1


def test_threads_that_the_user_set_stay() -> None:
    code = "print(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'])"
    done = run("-np", "2", *program(code), OMP_NUM_THREADS="7", TF_NUM_INTRAOP_THREADS="8")
    assert sorted(done.stdout.decode().splitlines()) == ["[0] 7 8", "[1] 7 8"]
    assert b"OMP_NUM_THREADS" not in done.stderr


def test_a_rank_alone_keeps_the_defaults_of_its_libraries() -> None:
    done = run("-np", "1", *program("print(os.environ.get('OMP_NUM_THREADS'))"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"None\n", b"")


@pytest.mark.parametrize(
    ("cores", "local", "expected"), [(4, 4, b"1"), (8, 4, b"2"), (2, 4, b"1"), (7, 2, b"3"), (64, 8, b"8")]
)
def test_share_of_the_cores(cores: int, local: int, expected: bytes) -> None:
    job = spec.Spec(size=local, command=[b"x"], environ={}, cwd=b"/")
    job.threads = threads.unset({})
    environ = spec.program_environment(job, {b"MPI_LOCALNRANKS": b"%d" % local}, cores)
    assert environ[b"OMP_NUM_THREADS"] == expected


def test_local_size_under_slurm() -> None:
    environ = {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}
    assert starters.announced_local_size(environ) == 1
    assert starters.announced_local_size({**environ, "SLURM_NODEID": "2"}) == 2
    assert starters.announced_local_size({}) == 0


@pytest.mark.parametrize("mpi", ALL_MPIS)
@pytest.mark.parametrize(
    ("end", "code", "words"),
    [("sys.exit(3)", 3, "exit code 3"), ("os.kill(os.getpid(), 9)", 137, "killed by signal 9, SIGKILL")],
)
def test_exit_code_is_that_of_the_first_rank_that_failed(end: str, code: int, words: str, mpi: str) -> None:
    _first_failure(end, code, words, mpi)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit(255)", 255, "exit code 255"),
        ("raise ValueError('boom')", 1, "exit code 1"),
        ("os.kill(os.getpid(), 11)", 139, "killed by signal 11, SIGSEGV"),
    ],
)
def test_exit_code_of_other_ends(end: str, code: int, words: str) -> None:
    _first_failure(end, code, words, "")


def _first_failure(end: str, code: int, words: str, mpi: str) -> None:
    done = run("-np", "3", *program(f"if rank == 1: {end}\ntime.sleep(50)"), mpi=mpi)
    assert done.returncode == code
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("sirtakirun: rank 1 on host ") and words in last
    assert done.stderr.count(b"failed first") == 1
    assert b"BAD TERMINATION" not in done.stderr and b"mpirun" not in done.stderr


def test_ranks_ended_as_a_consequence_are_not_the_first() -> None:
    code = """
import signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(77))
if rank == 2:
    time.sleep(0.5)
    os._exit(5)
time.sleep(50)
"""
    done = run("-np", "4", *program(code))
    assert done.returncode == 5
    assert b"rank 2 on host" in done.stderr.splitlines()[-1]


def test_success_when_one_rank_leaves_early() -> None:
    done = run("-np", "2", *program("time.sleep(0.5 * rank); print('done')"))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"[0] done", b"[1] done"]


def test_mpi_abort_gives_its_exit_code() -> None:
    mpi4py = pytest.importorskip("mpi4py")
    assert mpi4py.__version__
    from sirtaki.libraries import mpi_library

    code = "from mpi4py import MPI\nif rank == 1: MPI.COMM_WORLD.Abort(5); os._exit(5)\nMPI.COMM_WORLD.Barrier()"
    library = next(
        path for path in mpi_library.candidates() if not path.endswith(("libmpi_abi.so.1", "libmpi_abi.so.0"))
    )
    words = [sys.executable, "-c", "import os; rank = int(os.environ['PMI_RANK'])\n" + code]
    done = run("-np", "2", *words, MPI4PY_LIBMPI=library)
    assert done.returncode == 5, done.stderr


@pytest.mark.parametrize(
    ("word", "code", "expected"),
    [
        ("/no/such/program", 2, "there is no program '/no/such/program'"),
        ("train.py", 2, "to run a Python script: sirtakirun -np N python train.py"),
        ("", 2, "there is no program ''"),
    ],
)
def test_missing_program_is_reported_once(word: str, code: int, expected: str) -> None:
    done = run("-np", "2", word)
    assert done.returncode == code
    assert done.stderr.decode().count(expected) == 1


def test_program_that_cannot_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    done = run("-np", "2", str(broken))
    assert done.returncode == 127
    assert f"cannot start '{broken}' on".encode() in done.stderr


def test_ranks_read_nothing() -> None:
    done = run("-np", "2", *program("print(repr(sys.stdin.read()))"))
    assert sorted(done.stdout.splitlines()) == [b"[0] ''", b"[1] ''"]


def test_verbose_prints_the_command_line_of_mpiexec() -> None:
    done = run("-np", "1", "--verbose", *program("print('x')"))
    assert b"mpiexec" in done.stderr and b" -n 1 " in done.stderr and b"-bind-to none" in done.stderr


def test_mpi_args_and_binding_args_are_handed_on() -> None:
    done = run("-np", "1", "--verbose", "--mpi-args", "-genv EXTRA 'x y'", "--binding-args", "-bind-to core", "true")
    assert done.returncode == 0
    assert b"-bind-to core -genv EXTRA 'x y'" in done.stderr


def test_affinity_stays_whole() -> None:
    done = run("-np", "2", *program("print(len(os.sched_getaffinity(0)))"))
    assert sorted(done.stdout.decode().splitlines()) == [f"[0] {CORES}", f"[1] {CORES}"]


def test_launch_inside_a_rank_is_a_job_of_its_own() -> None:
    inner = command("-np", "2", *program("print('inner', rank, os.environ['SIRTAKI_SIZE'])"))
    done = run("-np", "1", *inner)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0] inner 0 2", b"[1] inner 1 2"]


def test_launching_loads_no_framework_and_no_core() -> None:
    code = (
        "import sys, sirtaki.launch.command\n"
        "print([m for m in ('torch', 'tensorflow', 'numpy', 'mpi4py.MPI', 'sirtaki._core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
    assert (FRAMEWORKS / "sirtaki" / "launch").is_dir()


@pytest.mark.parametrize("mpi", ALL_MPIS)
def test_exit_code_after_mpi_was_initialised(mpi: str) -> None:
    """mpiexec, too, notices that a rank has gone without MPI_Finalize, and kills; the rank's own code must win."""
    from sirtaki.libraries import mpi_library

    environ = {**os.environ, **({"SIRTAKI_MPI": mpi} if mpi else {})}
    library = mpi_library.find(environ).path
    code = f"""
import ctypes
mpi = ctypes.CDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
if rank == 1: time.sleep(0.3); os._exit(3)
time.sleep(50)
"""
    done = run("-np", "3", *program(code), mpi=mpi)
    assert done.returncode == 3, done.stderr
    assert b"rank 1 on host" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(
    not glob.glob("/lib/*-linux-gnu/libmpi.so.40") or not shutil.which("mpiexec.openmpi"),
    reason="the distribution's Open MPI is not installed",
)
def test_an_open_mpi_in_the_root() -> None:
    """C120"""
    (library,) = glob.glob("/lib/*-linux-gnu/libmpi.so.40")
    done = run("-np", "2", *program("print(rank)"), mpi=library)
    assert (done.returncode, sorted(done.stdout.split())) == (0, [b"0", b"1", b"[0]", b"[1]"]), done


def test_a_starter_that_starts_nothing() -> None:
    """Its own exit code is 0, but a job without ranks is no success."""
    done = run("-np", "2", "--mpi-args=--version", *program("print('ran')"))
    assert done.returncode == 1 and done.stdout == b"", done
    assert b"mpiexec ended with exit code 0, but has started 0 of 2 ranks" in done.stderr.splitlines()[-1], done


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["python", "-"], True),
        (["python3.11"], True),
        (["/usr/bin/python3", "-u", "-X", "dev", "-", "--epochs"], True),
        (["bash", "-s", "a"], True),
        (["sh", "-x"], True),
        (["python", "-u", "train.py", "-"], False),
        (["python", "-c", "pass", "-"], False),
        (["python", "-um", "train"], False),
        (["python", "--version"], False),
        (["bash", "-lc", "train"], False),
        (["bash", "train.sh", "-s"], False),
        (["cat", "-"], False),
    ],
)
def test_a_program_from_stdin(words: list[str], needed: bool) -> None:
    assert standard_input.is_needed(words) == needed


def test_a_program_from_stdin_is_refused() -> None:
    """Ranks would read nothing, and the job would end well."""
    words = command("-np", "2", sys.executable, "-")
    done = subprocess.run(words, input=b"print('ran')", env=environment(), capture_output=True, timeout=60)
    assert done.returncode == 2 and b"ran" not in done.stdout, done
    assert b"would read its program from stdin, which is /dev/null on all ranks" in done.stderr, done


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, math.inf),
        ("0::/a\n", {}, math.inf),
        (
            "3:cpu,cpuacct:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("3:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("nonsense\n", {"cpu.max": "0 0\n"}, math.inf),
    ],
)
def test_quota_of_a_container(membership: str, files: dict[str, str], expected: float, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.quota(str(tmp_path), str(tmp_path / "membership")) == expected


def test_threads_under_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed", lambda: 64)
    monkeypatch.setattr(cores, "quota", lambda: 4.5)
    assert cores.available() == 4
    assert threads.note({}, 2, True).endswith(" set to 2 (4 cores by the container's CPU quota / 2 local ranks)")
    assert "set to 4" in threads.note({}, 1, True)
    monkeypatch.setattr(spec, "allowed", lambda: 64)
    job = spec.Spec(size=1, command=[b"x"], environ={}, cwd=b"/")
    job.threads = threads.unset({})
    assert spec.program_environment(job, {}, 4)[b"OMP_NUM_THREADS"] == b"4"


TOUCH = "import os, torch; torch.ones(100_000).sum(); print(os.sched_getaffinity(0))"
BOUND = [{"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"}, {"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}]


@pytest.mark.parametrize("bound", BOUND, ids=lambda bound: "+".join(bound))
def test_bound_threads_of_two_ranks_have_cores_of_their_own(bound: dict[str, str]) -> None:
    """C106"""
    pytest.importorskip("torch")
    done = run("-np", "2", sys.executable, "-c", TOUCH, **bound)
    assert done.returncode == 0, done.stderr
    if CORES < 2:
        assert b" binds the threads of all ranks to the same cores" in done.stderr
        return
    first, second = (ast.literal_eval(line[4:].decode()) for line in sorted(done.stdout.splitlines()))
    assert first and second and not first & second, done.stdout
    assert b"each rank gets cores of its own, because of " in done.stderr


@pytest.mark.parametrize(
    "listed", [{"GOMP_CPU_AFFINITY": "0-1"}, {"OMP_PLACES": "{0},{1}"}], ids=lambda listed: str(*listed)
)
def test_cores_that_are_listed_for_all_ranks(listed: dict[str, str]) -> None:
    """C106: the list is the user's. One line says what is wrong with it."""
    done = run("-np", "2", *program("print(len(os.sched_getaffinity(0)))"), **listed)
    (name,) = listed
    told = f"{name} gives all ranks the same cores: unset it, and set OMP_PROC_BIND=true".encode()
    assert done.returncode == 0 and done.stderr.count(told) == 1, done.stderr


def test_share_of_bound_ranks() -> None:
    parts = [cores.share(rank, CORES) for rank in range(CORES)]
    assert set().union(*parts) == os.sched_getaffinity(0) and sum(map(len, parts)) == CORES
    assert cores.share(0, CORES + 1) == set()


def limited(soft: int, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("hard", [4096, 100])
def test_limit_of_open_files(hard: int) -> None:
    """C100"""
    code = "print(__import__('resource').getrlimit(7)[0])"
    words = command("-np", "16", *program(code))
    done = subprocess.run(
        words, env=environment(), capture_output=True, timeout=60, preexec_fn=lambda: limited(64, hard)
    )
    if hard == 4096:
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 16, done
        return
    assert done.returncode == 1, done
    (line,) = (line for line in done.stderr.splitlines() if b"open files" in line)
    assert line.startswith(b"sirtakirun: 16 ranks need 120 open files, but the hard limit is 100 (ulimit -Hn)")
