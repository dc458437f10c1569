"""`sirtakirun top` and Prometheus' text: what ranks have counted, asked of a running job."""

import io
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from launching import SECONDS, command, environment, running, written

from sirtaki.launch import metrics, running_jobs, top_command
from sirtaki.timing.rates import rates
from sirtaki.timing.text.summary_line import CAUSES

# A process in a rank's place: it counts 20 steps in a second, of which it waits for rank 1 for 30%.
STAND_IN = """
import json, os, socket, sys, time
launcher = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
launcher.connect("\\0" + os.environ["SIRTAKI_SUPERVISOR"])
launcher.send(b"J" + json.dumps({"limit": 30, "process": os.getpid()}).encode())
launcher.send(b"U")
begin = time.monotonic()
while launcher.recv(1000) == b"R":
    passed = time.monotonic() - begin
    times = dict.fromkeys(("agreement", "queue", "copy", "wire", "host", "exchange", "hidden"), 0)
    counts = {"steps": int(passed * 20), "bytes": int(passed * 1e7), "last": {"1": [int(passed * 20), 5]}}
    steps = {"length": int(passed * 1e9), "late": int(passed * 3e8)}
    launcher.send(b"R" + json.dumps({**times, **counts, **steps}).encode())
"""

# Ranks with the core.
STEPS = """
from sirtaki import exchange
while exchange.allreduce_largest(bytes([os.path.exists({end!r})]), "ends") == bytes(1):
    if rank == 1:
        time.sleep(0.01)
    core.end_step()
    if rank == 0:
        open({mark!r}, "w").close()
"""


def numbers(**changes):
    return {"steps": 10, "length": 10**9, "bytes": 1000, "last": {"1": [4, 9]}, **dict.fromkeys(CAUSES, 0), **changes}


def test_rates_are_differences():
    after = numbers(
        steps=30, length=3 * 10**9, late=10**9, wire=2 * 10**8, bytes=5000, last={"0": [5, 1], "1": [19, 9]}
    )
    found = rates(numbers(), after, seconds=4.0)
    assert (found.steps, found.bytes, found.waiting) == (5.0, 1000.0, pytest.approx(0.6))
    assert found.parts["late"] == pytest.approx(0.5) and found.parts["wire"] == pytest.approx(0.1)
    assert found.last == {0: 0.25, 1: 0.75}
    still = rates(after, after, seconds=1.0)
    assert still.steps == still.waiting == 0


def wait_for(path: Path, *words: str) -> None:
    """Until the file is there and has all these words."""
    until = time.monotonic() + SECONDS
    while not path.exists() or not all(word in path.read_text() for word in words):
        assert time.monotonic() < until, path
        time.sleep(0.02)


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_a_running_job_is_looked_at(tmp_path: Path, unused_port: int) -> None:
    file, picture = tmp_path / "metrics.prom", tmp_path / "top.png"
    flags = ("--metrics-port", str(unused_port), "--metrics-file", str(file))
    with running(tmp_path, "-np", "2", *flags, *written(tmp_path, STAND_IN, start="")) as job:
        wait_for(file, 'sirtaki_steps_total{rank="0"}', 'sirtaki_steps_total{rank="1"}')
        words = command("top", str(job.process.pid), "--count", "2", "--delay", "0.5", "--plot", str(picture))
        shown = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS)
        contents = scraped(unused_port), file.read_text()
    assert shown.returncode == 0, shown.stderr
    tables = shown.stdout.split(f"job {job.process.pid}: 2 ranks of")[1:]
    assert len(tables) == 2, shown.stdout
    rows = [line.split() for line in tables[-1].splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1"]
    assert [row[3:5] for row in rows] == [["30.0%", "30.0%"]] * 2, tables[-1]
    assert float(rows[1][2]) > 0 and rows[0][-1] == "0%" and rows[1][-1] != "0%"
    assert picture.read_bytes().startswith(b"\x89PNG")
    for content in contents:
        assert '\nsirtaki_steps_total{rank="1"} ' in content
        assert '\nsirtaki_wait_seconds_total{cause="late",rank="0"} ' in content


def test_ranks_count(tmp_path: Path) -> None:
    end, mark = tmp_path / "end", tmp_path / "mark"
    with running(tmp_path, "-np", "2", *written(tmp_path, STEPS.format(end=str(end), mark=str(mark)))) as job:
        wait_for(mark)
        name = running_jobs.choose(job.process.pid, "top")
        readings = [top_command.read(name)]
        while len(readings) < 2 or readings[1].ranks[0]["steps"] < readings[0].ranks[0]["steps"] + 20:
            readings[1:] = [top_command.read(name)]
        end.touch()
        assert job.process.wait(SECONDS) == 0
    for before, after in zip(*(reading.ranks for reading in readings), strict=True):
        assert after["steps"] > before["steps"] and after["length"] > before["length"] and after["bytes"] > 0
    # Rank 1 sleeps 10 ms in each of these steps, and rank 0 waits meanwhile for it.
    waited = rates(readings[0].ranks[0], readings[1].ranks[0], 1.0)
    assert waited.parts["late"] > 0 and waited.last[1] > 0


def test_the_choice_of_jobs_shows_the_command(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(running_jobs, "ask", lambda name, word: f"job {name}")
    running_jobs.explain(None, {71: "a", 72: "b"}, "top")
    shown = capsys.readouterr().err
    assert "for example: sirtakirun top 71\n" in shown and "sirtakirun: job b\n" in shown


def test_a_rank_that_counts_anew_has_no_rates() -> None:
    before = top_command.Reading(1.0, "job", [numbers(), numbers(), None])
    after = top_command.Reading(2.0, "job", [numbers(steps=20), numbers(steps=3), numbers()])
    found = top_command.rates_of_ranks(before, after)
    assert found[0] is not None and found[0].steps == 10.0 and found[1:] == [None, None]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--metrics-port", "70000"), "'70000' is not a port: at most 65535"),
        (("--metrics-file", "/no/such/folder/x"), "--metrics-file '/no/such/folder/x': cannot write into the folder"),
    ],
)
def test_what_cannot_be_served_is_refused(flags: tuple[str, str], complaint: str) -> None:
    done = subprocess.run(command("-np", "1", *flags, "true"), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0 and complaint in done.stderr, done.stderr


@pytest.mark.parametrize(("path", "why"), [("/tmp", "this is a folder"), ("", "the name is empty")])
def test_what_is_no_file_for_metrics_is_refused(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"--metrics-file '{path}': {why}"), metrics.serving("", None, path):
        pass


def test_a_port_that_is_taken_ends_the_job_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = command("-np", "1", "--metrics-port", port, "sleep", str(SECONDS))
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0 and f"--metrics-port {port}: Address already in use" in done.stderr, done.stderr


def test_a_job_that_has_ended_has_no_numbers() -> None:
    assert top_command.read("@sirtaki-status-none") is None
    assert [family.samples for family in metrics.JobCollector("@sirtaki-status-none").collect()] == [[]] * 5


@pytest.mark.parametrize("words", [("-d", "nan"), ("-d", "inf"), ("-d", "-1"), ("-n", "0"), ("-n", "-1")])
def test_a_wrong_number_for_top_is_refused(words: tuple[str, str], capsys) -> None:
    with pytest.raises(SystemExit):
        top_command.main(words)
    assert f"{words[1]!r} is not a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("x.words", "must end as that of a picture"),
        ("", "empty"),
        ("/tmp", "folder"),
        ("/no/such/x.png", "cannot write"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_first(path: str, why: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(running_jobs, "choose", lambda *_: "@sirtaki-status-none")
    assert top_command.main(["--plot", path]) == 1
    shown = capsys.readouterr().err
    assert f"--plot {path!r}: " in shown and why in shown


def test_a_job_that_ends_at_once_was_not_seen(monkeypatch, capsys) -> None:
    monkeypatch.setattr(running_jobs, "choose", lambda *_: "@sirtaki-status-none")
    assert top_command.main([]) == 1
    assert "the job has ended before its ranks were seen twice" in capsys.readouterr().err


def test_the_table_is_whole_in_80_columns_and_explains_missing_ranks() -> None:
    from rich.console import Console

    before = top_command.Reading(1.0, "job", [numbers(), None])
    changes = {"steps": 90_110, "length": 3 * 10**9, "bytes": 10**9, "late": 10**9, "last": {"1": [90_104, 9]}}
    after = top_command.Reading(2.0, "job", [numbers(**changes), None])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(top_command._table(after, top_command.rates_of_ranks(before, after)))
    shown = console.export_text()
    assert "…" not in shown and "has SIRTAKI_RECORDER=0" in shown
    assert [cell.split() for cell in shown.splitlines() if "90110" in cell] == [
        ["0", "90110", "90100.0", "50.0%", "50.0%", *["0.0%"] * 5, "1000.0", "0%"]
    ]


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
