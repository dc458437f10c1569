"""Signals of schedulers: time to save, to whom each signal goes, and warnings."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from launching import Running, program, run, running, written

# Each rank writes one line for each second that it has.
SAVE = """
import signal
def save(number, frame):
    with open(f"{sys.argv[1]}/checkpoint-{rank}", "a", buffering=1) as file:
        for part in range(6):
            time.sleep(1)
            file.write(f"{part}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""
READY = "open(f'{sys.argv[1]}/ready-{rank}', 'w').close()\n"
WHOLE = "".join(f"{part}\n" for part in range(6))
# The rank's process and two of a data loader's workers, which die of SIGTERM.
LOADER = """
import os, signal, sys, time, multiprocessing, sirtaki as hvd
def work(queue):
    for number in range(10**9): queue.put(number)
hvd.init()
rank = hvd.rank()
queue = multiprocessing.get_context("fork").Queue(2)
workers = [multiprocessing.get_context("fork").Process(target=work, args=(queue,), daemon=True) for _ in range(2)]
for worker in workers: worker.start()
def save(number, frame):
    time.sleep(1)
    got = [queue.get(timeout=5) for _ in range(50)]
    assert all(worker.is_alive() for worker in workers), workers
    open(f"{sys.argv[1]}/checkpoint-{rank}", "w").write(str(len(got)))
    hvd.shutdown()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    return path


def helpers_and_ranks(job: Running) -> tuple[list[int], list[int]]:
    """The processes of the step, as a scheduler sees them: all but the ranks' programs, and these."""
    found = {p.pid: p for p in map(psutil.Process, job.processes())}
    ranks = [pid for pid, p in found.items() if "start_worker" not in " ".join(p.cmdline()) and _is_program(p)]
    return [pid for pid in found if pid not in ranks], ranks


def _is_program(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and any("start_worker" in word for word in parent.cmdline()[:4])


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_time_to_save(ranks: int, here: Path, tmp_path: Path) -> None:
    """C86: six seconds by default."""
    words = ("-np", str(ranks), *program(SAVE + READY + "time.sleep(300)", str(here)))
    with running(tmp_path, *words, SIRTAKI_GRACE_SECONDS="") as job:
        job.wait_for(here, ranks)
        job.process.send_signal(signal.SIGTERM)
        error = job.process.communicate(timeout=30)[1]
        assert job.process.returncode == 128 + signal.SIGTERM, error
        assert b"the ranks have 30 s from SIGTERM to end (--grace-seconds); a second SIGTERM kills them" in error
        assert [(here / f"checkpoint-{rank}").read_text() for rank in range(ranks)] == [WHOLE] * ranks
        job.assert_nothing_left()


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_the_grace_can_be_set(by: str, here: Path, tmp_path: Path) -> None:
    flags = ["--grace-seconds", "1.5"] if by == "flag" else []
    words = ("-np", "2", *flags, *program(SAVE + READY + "time.sleep(300)", str(here)))
    with running(tmp_path, *words, SIRTAKI_GRACE_SECONDS="40" if flags else "1.5") as job:
        job.wait_for(here, 2)
        job.process.send_signal(signal.SIGTERM)
        job.process.communicate(timeout=30)
        for rank in range(2):
            assert (here / f"checkpoint-{rank}").read_text() in WHOLE[:8]
        job.assert_nothing_left()


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf"])
def test_a_grace_that_is_not_a_number_is_refused(value: str) -> None:
    done = run("-np", "1", "true", SIRTAKI_GRACE_SECONDS=value)
    assert (
        done.returncode == 2 and f"SIRTAKI_GRACE_SECONDS='{value}' is not a number of seconds".encode() in done.stderr
    )
    done = run("-np", "1", f"--grace-seconds={value}", "true")
    assert done.returncode == 2 and f"'{value}' is not a number of seconds".encode() in done.stderr


@pytest.mark.parametrize("around", ["nothing", "a shell"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loaders_workers_live_until_the_program_has_saved(
    ranks: int, around: str, here: Path, tmp_path: Path
) -> None:
    """C87"""
    words = written(tmp_path, LOADER + READY + "time.sleep(300)\n", start="")
    if around == "a shell":
        words = ["sh", "-c", f'{words[0]} {words[1]} "$1"; exit $?', "sh"]
    with running(tmp_path, "-np", str(ranks), *words, str(here), SIRTAKI_GRACE_SECONDS="20") as job:
        job.wait_for(here, ranks)
        job.process.send_signal(signal.SIGTERM)
        error = job.process.communicate(timeout=30)[1]
        assert [(here / f"checkpoint-{rank}").read_text() for rank in range(ranks)] == ["50"] * ranks, error
        job.assert_nothing_left()


def test_a_program_that_a_shell_has_started_gets_the_grace(here: Path, tmp_path: Path) -> None:
    """The shell dies of the signal; its child gets it then, and is known to be no rank's process."""
    python, *rest = program(SAVE + READY + "time.sleep(300)", str(here))
    words = ["sh", "-c", '"$@"; exit $?', "sh", python, *rest]
    with running(tmp_path, "-np", "2", *words, SIRTAKI_GRACE_SECONDS="20") as job:
        job.wait_for(here, 2)
        job.process.send_signal(signal.SIGTERM)
        job.process.communicate(timeout=30)
        assert [(here / f"checkpoint-{rank}").read_text() for rank in range(2)] == [WHOLE] * 2
        job.assert_nothing_left()


SAVE_ONCE = """
def note(word):
    with open(f"{sys.argv[1]}/checkpoint-{rank}", "a") as file: file.write(word)
def save(number, frame):
    note("begun ")
    time.sleep(4)
    note("ended")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
"""


@pytest.mark.parametrize("around", ["nothing", "a shell"])
def test_a_signal_to_all_processes_is_handled_once(around: str, here: Path, tmp_path: Path) -> None:
    """As a scheduler sends it: the launcher and the workers do not send it to the program again."""
    words = written(tmp_path, SAVE_ONCE + READY + "time.sleep(300)\n")
    if around == "a shell":
        words = ["sh", "-c", f'{words[0]} {words[1]} "$1"; exit $?', "sh"]
    with running(tmp_path, "-np", "2", *words, str(here), SIRTAKI_GRACE_SECONDS="20") as job:
        job.wait_for(here, 2)
        for pid in job.processes():
            os.kill(pid, signal.SIGTERM)
        job.process.communicate(timeout=30)
        assert [(here / f"checkpoint-{rank}").read_text() for rank in range(2)] == ["begun ended"] * 2
        job.assert_nothing_left()


WARNED = """
import os, signal, sys, time, sirtaki as hvd
number = int(sys.argv[2])
got = []
signal.signal(number, lambda *_: got.append(1))
hvd.init()
rank = hvd.rank()
"""
UNTIL_WARNED = """
while not got: time.sleep(0.02)
time.sleep(1)
print("warned", len(got), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_warning_to_all_processes(ranks: int, number: signal.Signals, here: Path, tmp_path: Path) -> None:
    """C88: the program's handler runs on each rank, and nothing else dies."""
    words = written(tmp_path, READY + UNTIL_WARNED, start=WARNED)
    with running(tmp_path, "-np", str(ranks), *words, str(here), str(int(number))) as job:
        job.wait_for(here, ranks)
        helpers, programs = helpers_and_ranks(job)
        assert len(programs) == ranks
        for pid in (*helpers, *programs):
            os.kill(pid, number)
        output, error = job.process.communicate(timeout=30)
        assert job.process.returncode == 0, error
        assert sorted(output.decode().splitlines()) == [f"[{rank}] warned 1" for rank in range(ranks)]


@pytest.mark.parametrize("begun", ["in the job", "before init"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_the_launcher_passes_a_warning_on(number: signal.Signals, begun: str, here: Path, tmp_path: Path) -> None:
    """C88: to a rank that has called init(), and to one that has not."""
    start = WARNED
    if begun == "before init":
        start = WARNED.replace("hvd.init()\nrank = hvd.rank()", "rank = os.environ['PMI_RANK']")
    words = written(tmp_path, READY + UNTIL_WARNED, start=start)
    with running(tmp_path, "-np", "2", *words, str(here), str(int(number))) as job:
        job.wait_for(here, 2)
        job.process.send_signal(number)
        output, error = job.process.communicate(timeout=30)
        assert job.process.returncode == 0, error
        assert sorted(output.decode().splitlines()) == ["[0] warned 1", "[1] warned 1"]
        assert b"job " not in error


@pytest.mark.parametrize("joined", [True, False])
def test_a_warning_without_a_handler_ends_nothing(joined: bool, here: Path, tmp_path: Path) -> None:
    start = "import os, signal, sys, time, sirtaki as hvd\nrank = os.environ['PMI_RANK']\n" + "hvd.init()\n" * joined
    words = written(tmp_path, READY + "while len(os.listdir(sys.argv[1])) < 3: time.sleep(0.02)\n", start=start)
    with running(tmp_path, "-np", "2", *words, str(here)) as job:
        job.wait_for(here, 2)
        assert job.process.stderr is not None
        for number, expected in (
            (signal.SIGUSR2, b"SIGUSR2 has no effect: the program of rank "),
            (signal.SIGUSR1, b"job "),
        ):
            job.process.send_signal(number)
            while expected not in (line := job.process.stderr.readline()):
                assert line
        (here / "end").touch()
        assert job.process.wait(30) == 0
