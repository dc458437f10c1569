"""Output of many ranks: whole lines with the rank in front, progress bars, files, timestamps."""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from launching import MPIS, SECONDS, command, environment, program, run, running

from sirtaki.job.launcher.screen import Screen
from sirtaki.job.protocol.channel import ERR, OUT


def show(ranks: int, *pieces: tuple[int, int, bytes], timestamps: bool = False) -> tuple[bytes, bytes]:
    """(stdout, stderr) after these pieces of output have come, as (rank, stream, bytes), and all ranks have ended."""
    pipes = [os.pipe(), os.pipe()]
    screen = Screen(ranks, timestamps, out=pipes[0][1], err=pipes[1][1])
    for rank, kind, data in pieces:
        screen.feed(rank, kind, data)
    for rank in range(ranks):
        screen.finish(rank)
    screen.write()
    assert screen.waiting() == 0
    result = []
    for read, write in pipes:
        os.close(write)
        with open(read, "rb") as stream:
            result.append(stream.read())
    return result[0], result[1]


def test_lines_are_whole_however_they_come_in_pieces() -> None:
    out, err = show(
        2, (1, OUT, b"on"), (0, OUT, b"zero\nagain"), (1, OUT, b"e\n\ntwo\n"), (0, ERR, b"E"), (0, ERR, b"!\n")
    )
    assert out == b"[0] zero\n[1] one\n[1] \n[1] two\n[0] again\n"
    assert err == b"[0] E!\n"


def test_last_line_without_newline_arrives_and_ends() -> None:
    assert show(2, (0, OUT, b"a"), (1, OUT, b"b"))[0] == b"[0] a\n[1] b\n"


def test_one_rank_passes_unchanged() -> None:
    assert show(1, (0, OUT, b"no newline\r10%"), (0, ERR, b"\xff\x00")) == (b"no newline\r10%", b"\xff\x00")


def test_progress_bar_of_rank_0_is_live_and_keeps_its_carriage_returns() -> None:
    pieces = [(0, ERR, b"\r 0%"), (0, ERR, b"\r50%"), (0, ERR, b"\r100%\n")]
    assert show(2, *pieces)[1] == b"[0] \r[0]  0%\r[0] 50%\r[0] 100%\n"
    assert show(2, *pieces[:2])[1] == b"[0] \r[0]  0%\r[0] 50%\n"
    assert show(2, (0, ERR, b"10%\r"), (0, ERR, b"20%\r"), (0, ERR, b"\n"))[1] == b"[0] 10%\r[0] 20%\r\n"


def test_line_of_another_rank_does_not_mix_with_the_bar() -> None:
    pieces = [(0, ERR, b"\r 0%"), (1, ERR, b"hello\n"), (0, ERR, b" of 9"), (1, ERR, b"x\n"), (0, ERR, b"\r100%\n")]
    expected = b"[0] \r[0]  0%\n[1] hello\n[0]  0% of 9\n[1] x\n[0] 100%\n"
    assert show(2, *pieces)[1] == expected


def test_bar_of_another_rank_waits_for_its_line() -> None:
    out = show(2, (1, OUT, b"\r 0%"), (1, OUT, b"\r50%"), (0, OUT, b"z\n"), (1, OUT, b"\r100%\n"))[0]
    assert out == b"[0] z\n[1] \r[1]  0%\r[1] 50%\r[1] 100%\n"


def test_windows_line_ends_stay() -> None:
    assert show(2, (0, OUT, b"one\r"), (0, OUT, b"\ntwo\r\n"))[0] == b"[0] one\r\n[0] two\r\n"


def test_endless_bar_and_endless_line_are_bounded() -> None:
    screen = Screen(2, out=os.open(os.devnull, os.O_WRONLY), err=os.open(os.devnull, os.O_WRONLY))
    for _ in range(300):
        screen.feed(1, ERR, b"\r" + b"x" * 1000)
        screen.feed(1, OUT, b"y" * 100_000)
    sizes = [len(line.text) for line in screen._lines.values()]
    assert max(sizes) < 9_000_000 and min(sizes) < 70_000


def test_both_streams_on_one_file_share_the_bar_line() -> None:
    read, write = os.pipe()
    screen = Screen(2, out=write, err=os.dup(write))
    screen.feed(0, ERR, b"\r 5%")
    screen.feed(0, OUT, b"printed\n")
    assert os.read(read, 1000) == b"[0] \r[0]  5%\n[0] printed\n"


def test_timestamps_stand_in_front() -> None:
    pattern = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[1\] x\n"
    assert re.fullmatch(pattern, show(2, (1, OUT, b"x\n"), timestamps=True)[0])


def test_slow_reader_makes_no_one_block() -> None:
    read, write = os.pipe()
    screen = Screen(2, out=write, err=write)
    screen.feed(0, OUT, b"x" * 100 + b"\n" * 500_000)
    assert screen.waiting() > 0  # the pipe is full, and we are back
    got = b""
    while screen.waiting():
        got += os.read(read, 1 << 16)
        screen.write()
    os.close(write)
    while piece := os.read(read, 1 << 16):
        got += piece
    assert got == b"[0] " + b"x" * 100 + b"\n" + b"[0] \n" * 499_999


@pytest.mark.parametrize("mpi", MPIS)
def test_a_thousand_long_lines_of_each_rank_are_never_mixed(mpi: str) -> None:
    code = "for i in range(1000): print(rank, i, str(rank) * 3000); print('e', rank, i, file=sys.stderr)"
    done = run("-np", "4", *program(code), mpi=mpi)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert Counter(lines) == Counter(f"[{r}] {r} {i} {str(r) * 3000}" for r in range(4) for i in range(1000))
    for rank in range(4):
        own = [int(line.split()[2]) for line in lines if line.startswith(f"[{rank}]")]
        assert own == list(range(1000))
    errors = [line for line in done.stderr.decode().splitlines() if not line.startswith("sirtakirun: ")]
    assert sorted(errors) == sorted(f"[{r}] e {r} {i}" for r in range(4) for i in range(1000))


def test_progress_bar_arrives_while_it_grows(tmp_path: Path) -> None:
    code = """
if rank: time.sleep(60)
for i in range(3):
    sys.stderr.write(f"\\r{i * 50}%"); sys.stderr.flush()
time.sleep(60)
"""
    with running(tmp_path, "-np", "2", *program(code)) as job:
        assert job.process.stderr is not None
        got = b""
        while b"100%" not in got:
            piece = os.read(job.process.stderr.fileno(), 1000)
            assert piece, got
            got += piece
        assert b"[0] \r[0] 0%\r[0] 50%\r[0] 100%" in got


def test_last_line_without_newline_and_output_of_a_child_that_lives_on() -> None:
    code = "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.2; echo late'])\nsys.stdout.write('end')"
    done = run("-np", "2", *program(code))
    lines = done.stdout.splitlines()
    assert {b"[0] end", b"[1] end"} <= set(lines) or {b"[0] endlate", b"[1] endlate"} <= set(lines)


def test_output_of_a_failing_rank_arrives_before_the_last_line() -> None:
    done = run("-np", "2", *program("if rank: sys.stderr.write('why it failed'); sys.exit(4)\ntime.sleep(60)"))
    lines = done.stderr.decode().splitlines()
    assert (
        lines[-2] == "[1] why it failed"
        and lines[-1].startswith("sirtakirun: rank 1 on host ")
        and "failed first: exit code 4 (" in lines[-1]
    )


def test_binary_output_passes() -> None:
    done = run("-np", "2", *program("sys.stdout.buffer.write(bytes([rank, 255, 0]) + b'\\n')"))
    assert sorted(done.stdout.splitlines()) == [b"[0] \x00\xff\x00", b"[1] \x01\xff\x00"]


@pytest.mark.parametrize("mpi", MPIS)
def test_files_of_each_rank(mpi: str, tmp_path: Path) -> None:
    code = "print('out', rank); sys.stdout.flush(); sys.stderr.write(f'\\rerr {rank}')"
    done = run("-np", "2", "--output-filename", str(tmp_path / "deep" / "files"), *program(code), mpi=mpi)
    assert done.returncode == 0
    for rank in range(2):
        directory = tmp_path / "deep" / "files" / f"rank.{rank}"
        assert (directory / "stdout").read_text() == f"out {rank}\n"
        assert (directory / "stderr").read_bytes() == b"\rerr %d" % rank
        assert f"[{rank}] out {rank}" in done.stdout.decode()


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("-np", "2", "--output-filename", str(tmp_path / "file"), *program("print('x')"))
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert "failed first: the program was not started: " in last and f"{tmp_path}/file" in last
    assert "Not a directory" in last or "File exists" in last


def test_files_on_a_full_disk(tmp_path: Path) -> None:
    """The ranks go on; what they print still arrives."""
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    done = run("-np", "1", "--output-filename", str(tmp_path), *program("print('x'); sys.exit(3)"))
    assert done.returncode == 3 and done.stdout == b"x\n"
    assert f"nothing more is written to {tmp_path}/rank.0/stdout on ".encode() in done.stderr


def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "wb") as full:
        words = command("-np", "1", *program("print('x'); time.sleep(60)"))
        done = subprocess.run(words, env=environment(), stdout=full, stderr=subprocess.PIPE, timeout=SECONDS)
    assert done.returncode == 1
    assert b"its output cannot be written: No space left on device" in done.stderr.splitlines()[-1]


def test_prefix_with_timestamp_flag() -> None:
    done = run("-np", "1", "--prefix-output-with-timestamp", *program("print('x')"))
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\S+ x\n", done.stdout)


def test_lines_come_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "-np", "2", *program("print('here'); time.sleep(60)")) as job:
        assert job.process.stdout is not None
        lines = {job.process.stdout.readline(), job.process.stdout.readline()}
        assert lines == {b"[0] here\n", b"[1] here\n"}
