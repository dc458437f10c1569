"""`sirtakirun --restarts`: which failures start the job anew, how often, and what the next life gets."""

import json
import signal
from pathlib import Path

import pytest
from launching import Running, program, run, running, written

from sirtaki.job.launcher import status
from sirtaki.launch import restarts

LIFE = "life = int(os.environ['SIRTAKI_RESTART_COUNT'])\n"
DIES_ONCE = (
    LIFE
    + """
print("life", life, "secret", os.environ.get("SIRTAKI_SUPERVISOR"), flush=True)
meet("second")
if life == 0 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
meet("third")
"""
)


def lines_of(error: bytes) -> list[str]:
    return [line for line in error.decode().splitlines() if line.startswith("sirtakirun: ") and "THREADS" not in line]


def test_a_job_that_loses_a_rank_starts_anew(tmp_path: Path) -> None:
    """The timeline and the output of the first life stay; the second life has files and secrets of its own."""
    words = ("--restarts", "2", "--timeline-filename", str(tmp_path / "t.json"), "--output-filename", str(tmp_path))
    done = run("-np", "2", *words, *written(tmp_path, DIES_ONCE))
    assert done.returncode == 0, done.stderr
    said = lines_of(done.stderr)
    assert said[0].startswith("sirtakirun: the last records of each rank: ")
    assert "rank 1 on host" in said[1] and "failed first: killed by signal 9" in said[1]
    assert said[2] == "sirtakirun: restart 1 of 2 in 1 s: rank 1 failed (killed by signal 9, SIGKILL (out of memory?))"
    assert len([line for line in said if "restart" in line]) == 1
    for rank in (0, 1):
        lives = (tmp_path / f"rank.{rank}" / "stdout").read_text().splitlines()
        assert [line.split()[1] for line in lives] == ["0", "1"]
        assert len({line.split()[3] for line in lives}) == 2
    assert (tmp_path / "t.json").exists()
    assert json.loads((tmp_path / "t.restart1.json").read_text())


@pytest.mark.parametrize(
    ("code", "exit_code", "why"),
    [
        ("meet('second')", 0, None),
        ("sys.exit(2)", 2, "exit code 2 means wrong arguments, or a program that cannot be executed"),
    ],
)
def test_ends_that_a_restart_does_not_help(code: str, exit_code: int, why: str | None, tmp_path: Path) -> None:
    done = run("-np", "2", "--restarts", "1", *written(tmp_path, code))
    assert done.returncode == exit_code, done.stderr
    assert ("not restarted: " + why in done.stderr.decode()) if why else (b"restart" not in done.stderr)


def test_a_job_that_was_never_up_is_not_started_anew() -> None:
    done = run("-np", "2", "--restarts", "3", *program("import no_such_module"))
    assert done.returncode == 1
    said = lines_of(done.stderr)
    assert said[-1] == "sirtakirun: not restarted: not all ranks had completed init(), so the job would fail again"
    assert b"--restarts" in run("-np", "2", "--restarts", "x", "true").stderr


def _ready(job: Running, path: Path) -> None:
    path.mkdir()
    job.wait_for(path, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_job_for_good(number: signal.Signals, tmp_path: Path) -> None:
    here = tmp_path / "here"
    code = "open(f'{sys.argv[1]}/{rank}', 'w').close()\ntime.sleep(60)\n"
    with running(tmp_path, "-np", "2", "--restarts", "3", *written(tmp_path, code), str(here)) as job:
        _ready(job, here)
        job.process.send_signal(number)
        error = job.process.communicate(timeout=30)[1]
        assert job.process.returncode == 128 + number, error
        assert b"restart" not in error
        job.assert_nothing_left()


def test_a_signal_in_the_middle_of_a_line() -> None:
    """It ends the launcher once the line is complete."""
    notes: list[str] = []

    class Screen:
        def note(self, text: str) -> None:
            if not notes:
                signal.raise_signal(signal.SIGTERM)  # to this thread: pytest's process has others
            notes.append(text)

    with restarts.leaving_in_order():
        assert restarts.run(lambda number: restarts.Life(1, "rank 0 failed"), 3, Screen()) == 128 + signal.SIGTERM
    assert notes == ["restart 1 of 3 in 1 s: rank 0 failed", "ended by a signal before restart 1"]


def test_a_signal_between_two_lives(tmp_path: Path) -> None:
    code = "meet('second')\nif rank: os.kill(os.getpid(), signal.SIGKILL)\nmeet('third')\n"
    with running(tmp_path, "-np", "2", "--restarts", "3", *written(tmp_path, code)) as job:
        assert job.process.stderr is not None
        while b"restart 1 of 3" not in (line := job.process.stderr.readline()):
            assert line
        job.process.send_signal(signal.SIGTERM)
        error = job.process.communicate(timeout=30)[1]
        assert job.process.returncode == 128 + signal.SIGTERM
        assert error == b"sirtakirun: ended by a signal before restart 1\n"
        job.assert_nothing_left()


def test_the_status_names_the_life() -> None:
    assert ": 2 ranks of python train.py, started at 20" in status.title(["python", "train.py"], 2)
    assert ": 2 ranks of python train.py, restart 1 at 20" in status.title(["python", "train.py"], 2, 1)


def test_the_wait_before_a_start() -> None:
    assert [restarts.seconds_before_start(short) for short in range(9)] == [1, 1, 2, 4, 8, 16, 32, 60, 60]


def test_lives_that_last_begin_with_short_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    waits: list[float] = []
    notes: list[str] = []

    def live(number: int) -> restarts.Life:
        nonlocal now
        now += 1 if number != 3 else 3600
        return restarts.Life(7 + number, "rank 0 failed")

    class Screen:
        note = notes.append

    monkeypatch.setattr(restarts.time, "monotonic", lambda: now)
    monkeypatch.setattr(restarts.signal, "sigtimedwait", lambda signals, wait: waits.append(wait))
    assert restarts.run(live, 6, Screen) == 7 + 6  # type: ignore[arg-type]
    assert waits == [1, 2, 4, 1, 1, 2]
    assert notes[0] == "restart 1 of 6 in 1 s: rank 0 failed"
    assert notes[6:] == ["not restarted: no restart is left (--restarts 6)"]
