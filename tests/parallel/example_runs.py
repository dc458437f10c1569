"""Runs examples as a user runs them, or several in one job, since torch's import takes longer than most of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jobs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_SECONDS = 600
_MARK = "=== the next example"
_PROGRAM = f"""
import os, runpy, sys
import torch
sys.path.insert(0, {str(EXAMPLES)!r})
for line in sys.argv[1:]:
    name, *sys.argv[1:] = line.split()
    if "0" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
        print({_MARK!r}, flush=True)
    runpy.run_path({str(EXAMPLES)!r} + "/" + name, run_name="__main__")
"""


def run(ranks: int, example: str, *arguments: str, extra: Mapping[str, str] | None = None) -> jobs.Ended:
    """Runs an example on so many ranks, with extra variables in their environment."""
    return _run(ranks, [str(EXAMPLES / example), *arguments], extra)


def output(done: jobs.Ended) -> str:
    assert done.code == 0, done.output
    return done.output


def outputs_of_one_job(ranks: int, lines: Sequence[str]) -> list[str]:
    """What each of these command lines prints: examples of torch with their words, which contain no space."""
    _, *texts = output(_run(ranks, ["-c", _PROGRAM, *lines], None)).split(f"{_MARK}\n")
    assert len(texts) == len(lines), texts
    return texts


def _run(ranks: int, words: Sequence[str], extra: Mapping[str, str] | None) -> jobs.Ended:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "output")
        job = jobs.start(ranks, [sys.executable, *words], file, extra)
        try:
            job.wait(_SECONDS)
        finally:
            jobs.kill(job)
        return jobs.Ended(job.returncode, file.read_text(errors="replace"))
