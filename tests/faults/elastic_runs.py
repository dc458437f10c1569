"""Runs elastic jobs in which ranks go wrong, as a seed chooses, and prints the table of docs/elastic.md.

A run passes if the ranks that are left end with the weights of an undisturbed run, bit by bit, and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import elastic_ranks
import processes

_PROGRAM = Path(__file__).with_name("elastic_ranks.py")
_LIMIT = 300.0  # seconds of one run
_LIMITS = ("--elastic-timeout", "15", "--grace-seconds", "3")
_STALL = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "3"}
DEATHS = ("killed", "killed soon")


@dataclass(frozen=True)
class Run:
    """hosts: as the ranks see it; those of different hosts are connected by TCP. start: limit of a process, seconds."""

    seed: str
    ranks: int
    hosts: int
    changes: int
    kinds: tuple[str, ...]
    start: int = 8

    @staticmethod
    def of_seed(seed: str, changes: int, kinds: tuple[str, ...]) -> Run:
        chooser = random.Random(seed)
        return Run(seed, chooser.choice((2, 3, 3, 4)), chooser.choice((1, 1, 2, 4)), changes, kinds)


@dataclass
class Outcome:
    """complaint: what the run shows to be wrong, or "". struck: how often, by kind and by place. output: of the job."""

    complaint: str = ""
    seconds: float = 0.0
    generations: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    output: str = ""


def execute(run: Run, token: str) -> Outcome:
    """token: no other run has it."""
    segments = processes.segments_now()
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as file,
        tempfile.NamedTemporaryFile("r") as struck_file,
    ):
        job = subprocess.Popen(
            _command(run),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**_environment(run, token, folder), "ELASTIC_STRUCK": struck_file.name},
            start_new_session=True,
        )
        try:
            code: int | None = job.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        outcome = Outcome(seconds=time.monotonic() - begin)
        left = processes.wait_until_gone(token)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        job.wait()
        file.seek(0)
        outcome.output = file.read().decode(errors="replace")
        files = sorted(os.listdir(folder))
        struck = re.findall(r"(.*) in (\w+)", struck_file.read())
    outcome.kinds, outcome.places = Counter(kind for kind, _ in struck), Counter(place for _, place in struck)
    outcome.generations = outcome.output.count("the job goes on with")
    outcome.complaint = _complaint(code, outcome.output, left, processes.unused(processes.segments_now() - segments))
    if files and not outcome.complaint:
        outcome.complaint = f"files were left: {files}"
    return outcome


def _complaint(code: int | None, output: str, left: list[int], segments: set[str]) -> str:
    results = [json.loads(text) for text in re.findall(r"RESULT (.*)", output)]
    if code is None:
        return "it did not end"
    if code:
        return f"exit code {code}"
    if not results:
        return "no rank has a result"
    for step, weights in results:
        if step != results[0][0] or weights != elastic_ranks.undisturbed(step):
            return f"step {step} of {[step for step, _ in results]} has other weights than an undisturbed run"
    if left:
        return f"processes {left} were left"
    return f"{segments} were left in /dev/shm" if segments else ""


def _command(run: Run) -> list[str]:
    flags = ["-np", str(run.ranks), "--min-np", "1", "--blacklist-cooldown-range", "1", "1", *_LIMITS]
    flags += ["--start-timeout", str(run.start)]
    program = [sys.executable, str(_PROGRAM), run.seed, str(run.changes), ",".join(run.kinds)]
    return [sys.executable, "-m", "sirtaki.launch", *flags, *program]


def _environment(run: Run, token: str, folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(processes.LAUNCHERS)}
    own = {processes.TOKEN: token, "TMPDIR": folder, "ELASTIC_HOSTS": str(run.hosts), "OMP_NUM_THREADS": "1"}
    return {**kept, **own, **_STALL}


def _kinds(number: int) -> tuple[str, ...]:
    """Half of the runs have deaths only, because these change the ranks quickly."""
    return DEATHS if number % 2 else tuple(elastic_ranks.KINDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--changes", type=int, default=5, help="changes of the ranks in each run")
    arguments = parser.parse_args()
    kinds, places = Counter[str](), Counter[str]()
    wrong, longest, generations = 0, 0.0, 0
    for number in range(arguments.first, arguments.first + arguments.runs):
        run = Run.of_seed(f"{arguments.seed} {number}", arguments.changes, _kinds(number))
        outcome = execute(run, f"{os.getpid()} {number}")
        kinds, places = kinds + outcome.kinds, places + outcome.places
        longest, generations = max(longest, outcome.seconds), generations + outcome.generations
        print(f"{number}: {run}: {outcome.seconds:.1f} s {outcome.complaint}", file=sys.stderr, flush=True)
        if outcome.complaint:
            wrong += 1
            print(f"{outcome.output}\nrun {number} was wrong: {outcome.complaint}\n", flush=True)
    print("| fault | times |\n|---|---|")
    print("\n".join(f"| {kind} | {count} |" for kind, count in sorted(kinds.items())))
    print("\nwhere: " + ", ".join(f"{place} {count}" for place, count in sorted(places.items())))
    print(f"{arguments.runs} runs, {generations} changes of the ranks, longest {longest:.0f} s, {wrong} runs wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
