"""Jobs of their own: other numbers of ranks, ranks that are killed, the example."""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jobs
import pytest
import torch

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
ENVIRONMENT = jobs.environment(
    {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
)
PROGRAM = """
import os, signal, sys
import torch
import sirtaki.torch as hvd
from sharded_training import SmallNet, adamw, data, sharded, train

hvd.init()
file = sys.argv[1]


def load(model, optimizer):
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def save(model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if hvd.rank() == 0:
        torch.save(state, file + ".new")
        os.replace(file + ".new", file)
    hvd.barrier()
"""


def run(ranks: int, program: str, folder: Path, *arguments: object) -> jobs.Ended:
    script = folder / "program.py"
    script.write_text(PROGRAM + textwrap.dedent(program))
    return launch(ranks, script, *arguments)


def launch(ranks: int, script: Path, *arguments: object) -> jobs.Ended:
    words = [sys.executable, "-m", "sirtaki.launch", "-np", ranks, sys.executable, script, *arguments]
    done = subprocess.run([*map(str, words)], env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    return jobs.Ended(done.returncode, done.stdout + done.stderr)


RESUMED = """
model = SmallNet()
optimizer = adamw(model) if sys.argv[2] == "plain" else sharded(model)
if os.path.exists(file):
    load(model, optimizer)
first = int(sys.argv[3])
for step in range(first, first + 3):
    optimizer.zero_grad()
    model(data(step, rank=0)).square().mean().backward()  # the same on all ranks, so that N does not matter
    optimizer.step()
save(model, optimizer)
if hvd.rank() == 0:
    print("sum", sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.mark.long
def test_resume_on_other_numbers_of_ranks(tmp_path):
    """Also in a program without Sirtaki's optimizer, and back; the same training in one process ends equal."""
    sums = []
    for chain in (["4", "2", "plain", "3"], ["plain"] * 4):
        file = tmp_path / "checkpoint"
        file.unlink(missing_ok=True)
        for first, kind in zip(itertools.count(0, 3), chain, strict=False):
            done = run(1 if kind == "plain" else int(kind), RESUMED, tmp_path, file, kind, first)
            assert done.code == 0, done.output
        sums.append(float(re.search(r"sum (\S+)", done.output)[1]))
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)


def test_a_rank_that_is_killed_in_a_step(tmp_path):
    """After it has sent its gradients: the others wait for its piece, and name it."""
    done = run(
        3,
        """
        model = SmallNet()
        optimizer = sharded(model)
        train(model, optimizer, range(2))

        def die(*_):
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        train(model, optimizer, [2], before_step=die)
        print("went on")
        """,
        tmp_path,
        "unused",
    )
    assert done.code != 0 and "went on" not in done.output
    assert "rank 1" in done.output and "SIGKILL" in done.output, done.output


def test_a_rank_that_dies_while_a_checkpoint_is_written(tmp_path):
    """The old file stays whole, because the new one is written aside and renamed."""
    file = tmp_path / "checkpoint"
    done = run(
        2,
        """
        from sirtaki.torch.sharding import state

        model = SmallNet()
        optimizer = sharded(model)
        train(model, optimizer, range(2))
        save(model, optimizer)
        train(model, optimizer, range(2, 4))
        gather, calls = state.gather, []

        def dying(*arguments):
            calls.append(arguments)
            if hvd.rank() == 1 and len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return gather(*arguments)

        state.gather = dying
        save(model, optimizer)
        """,
        tmp_path,
        file,
    )
    assert done.code != 0 and "rank 1" in done.output, done.output
    saved = torch.load(file, weights_only=True)
    assert saved["optimizer"]["state"][0]["step"] == 2 and len(saved["optimizer"]["state"]) == 10


def test_example():
    small = "--parameters 3M --sequence-length 8 --rounds 1 --steps 1 --modes sharded sirtaki --free-gradients"
    done = launch(2, EXAMPLES / "gpt2_synthetic.py", *small.split())
    assert done.code == 0, done.output
    assert re.search(r"GPT-2 with 3,\d+,\d+ parameters, float32, 2 rank\(s\) on cpu", done.output), done.output
    for mode, formula in (("sharded", "10.00"), ("sirtaki", "16.00")):
        line = rf"{mode}: \d+\.\d tokens/s, .* bytes a parameter .*\(formula {formula}\)"
        assert re.search(line, done.output), done.output
    for arguments, message in (
        ("--modes sharded-captured --no-cuda", "needs a CUDA GPU"),
        ("--memory --parameters 2.5B --dtype bfloat16", r"sharded +35\.95 +22\.47 +15\.73 +12\.36\n"),
    ):
        words = [sys.executable, EXAMPLES / "gpt2_synthetic.py", *arguments.split()]
        alone = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
        assert re.search(message, alone.stdout + alone.stderr)
