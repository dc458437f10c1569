"""docs/first_job.md: its program, its script and its commands are run, and print what the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from launching import command, environment

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs/first_job.md").read_text()
FOUND = "[-0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]"


def commands() -> list[str]:
    return re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the page, with this Python, and from a folder that has the page's program and script."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "tutorial.py").write_text(program)
    (script,) = re.findall(r"^```sh\n(#!/bin/sh.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "pretend_ssh.sh").write_text(script)
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]
    words = command(*words[1:]) if words[0] == "sirtakirun" else words
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )


def test_the_page_has_five_commands() -> None:
    assert len(commands()) == 5 and "-H node1:2,node2:2" in commands()[2]


@pytest.mark.parametrize(
    ("number", "ranks", "rows"), [(0, 1, 1024), (1, 2, 512), pytest.param(3, 4, 256, marks=pytest.mark.long)]
)
def test_the_same_numbers_on_any_number_of_ranks(number: int, ranks: int, rows: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(commands()[number], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"^\[\d\] ", "", line) for line in done.stdout.splitlines()]
    assert sorted(lines) == [f"rank {rank} of {ranks}, {rows} rows: {FOUND}" for rank in range(ranks)]
    assert all(line in PAGE for line in lines)
    assert ranks == 1 or "sirtakirun: 199 steps: " in done.stderr


def test_the_failure_on_purpose(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(commands()[4], tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "rank 1 on host " in last and "failed first: ValueError: this rank has had enough in step 20" in last
    assert "tutorial.py:27" in last and "tutorial.py:27" in PAGE
