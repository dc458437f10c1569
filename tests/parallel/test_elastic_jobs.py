"""Elastic jobs whose ranks die: the parameters are those of an undisturbed run, and no batch is lost or used twice."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import elastic_runs

_REPLACED = [("stays", 0, 0), ("dies", 1, -1), ("new", -1, 1)]  # see _run()
_LIMIT = 120

# Plain processes without a launcher. What it would send to the ranks is in NEXT_RANK, NEXT_SIZE and NEXT_PORT.
_WITHOUT_LAUNCHER = """
import os, signal, sys
from sirtaki import elastic
from sirtaki.elastic import membership

def reset(join=membership.reset):
    for own, following in ("RANK", "NEXT_RANK"), ("WORLD_SIZE", "NEXT_SIZE"), ("MASTER_PORT", "NEXT_PORT"):
        os.environ[own] = os.environ[following]
    join()

membership.reset = reset
is_new, dies = os.environ["KIND"] == "new", os.environ["KIND"] == "dies"
"""
_TORCH = """
import copy
import torch
import sirtaki.torch as hvd

hvd.init()
data = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))

def make():
    torch.manual_seed(int(is_new))
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    return model, optimizer

def train(state, kill_at=-1):
    while state.epoch < 2:
        for number, (rows,) in enumerate(torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(data), 2, sampler=state.sampler)):
            state.optimizer.zero_grad()
            state.model(rows).square().sum().backward()
            state.optimizer.step()
            state.seen.append(hvd.allgather_object(state.sampler.get_indices(number, 2)))
            state.sampler.record_batch(number, 2)
            if len(state.seen) == kill_at and dies:
                state.check_host_updates = lambda: os.kill(os.getpid(), signal.SIGKILL)  # in the commit
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)

def make_state():
    model, optimizer = make()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(data), seen=[], epoch=0)

def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

if not is_new:  # an undisturbed run before
    reference = make_state()
    train(reference)
    steps = len(reference.seen)
    elastic.progress = 0
    del reference.optimizer  # so that the other optimizer has the same names on all ranks
    reference.__dict__["_handlers"].pop("optimizer")

state = make_state()
hvd.elastic.run(train)(state, kill_at=3)

assert elastic.progress == len(state.seen)
used = sorted(index for step in state.seen for part in step for index in part)
assert used == sorted([*range(48)] * 2), used
model, optimizer = make()  # one process that takes the same steps
if is_new:
    print("done", hvd.rank(), hvd.size(), "new")
else:
    for step in state.seen:
        optimizer.zero_grad()
        for part in step:
            (model(data[part]).square().sum() / len(step)).backward()
        optimizer.step()
    torch.testing.assert_close(flat(model), flat(state.model))
    same = state.seen == reference.seen
    assert not same or torch.equal(flat(state.model), flat(reference.model))
    print("done", hvd.rank(), hvd.size(), same)
everywhere = hvd.allgather(flat(state.model)[None])
assert (everywhere == everywhere[0]).all()
hvd.shutdown()
"""
_TENSORFLOW = """
import tensorflow as tf
import sirtaki.tensorflow as hvd

def make():
    weight = tf.Variable(tf.fill([4], 1.0 + is_new))

    @tf.function
    def step(rows):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight * rows) ** 2
        weight.assign_sub(0.01 * tape.gradient(loss, [weight])[0])

    return (lambda: hvd.elastic.TensorFlowState([weight], epoch=0)), lambda epoch: step(x[epoch + 4 * hvd.rank()])
"""
_KERAS = """
import keras
import sirtaki.keras as hvd

def make():
    keras.utils.set_random_seed(int(is_new))
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")

    def step(epoch):
        own = slice(hvd.rank(), None, 2)
        model.fit(x[own], x[own, :1], batch_size=4, shuffle=False, verbose=0)

    return (lambda: hvd.elastic.KerasState(model, epoch=0)), step
"""
_STEPS = """
import numpy as np

hvd.init()
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")

def train(state, kill_at=-1):
    while state.epoch < 4:
        if state.epoch == kill_at and dies:
            os.kill(os.getpid(), signal.SIGKILL)
        step(state.epoch)
        state.epoch += 1
        state.commit()

def values(state):
    return np.concatenate([value.flatten() for value in state._read()])

make_state, step = make()
state = make_state()
if not is_new:  # an undisturbed run before, with the same functions
    reference = make_state()
    train(reference)
    expected = values(reference)
    state.restore()
    elastic.progress = 0
errors = []

@hvd.elastic.run
def run(state):
    try:
        train(state, kill_at=2)
    except Exception as error:
        errors.append(type(error).__name__)
        raise

run(state)
if not is_new:
    assert np.array_equal(values(state), expected)
    assert errors == [os.environ["ERROR"]], errors
everywhere = np.asarray(hvd.allgather(values(state)[None]))
assert np.array_equal(everywhere, np.stack([everywhere[0]] * 2))
print("done", hvd.rank(), hvd.size(), elastic.progress)
hvd.shutdown()
"""


# Rank 0 adds slots at step 10, and removes all but its own when there are three ranks.
_SLOTS = """
import sys, time
import sirtaki
from sirtaki import exchange, runtime
from sirtaki.elastic import run
from sirtaki.elastic.state import ObjectState

sirtaki.init()
hosts = sys.argv[1]
state = ObjectState(exchange.broadcast_object, sirtaki.rank, step=0, total=0, sizes=[sirtaki.size()])
state.register_reset_callbacks([lambda: state.sizes.append(sirtaki.size())])
steps = 0

def offer(slots):
    with open(hosts, "w") as file:
        file.write(f"localhost:{slots}")

@run.run
def train(state):
    global steps
    while state.sizes[-1] != 1 or 3 not in state.sizes:
        first = state.step * 6
        parts = exchange.allgather_object(list(range(first + sirtaki.rank(), first + 6, sirtaki.size())))
        state.total += sum(map(sum, parts))
        state.step, steps = state.step + 1, steps + 1
        if state.step == 10:
            offer(3)
        if sirtaki.size() == 3 and sirtaki.rank() == 0:
            offer(1)
        time.sleep(0.01)
        state.commit()

train(state)
assert state.total == sum(range(state.step * 6)), state.total
assert steps == state.step, (steps, state.step)
print("SIZES", state.sizes)
"""


def _free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [one.getsockname()[1], other.getsockname()[1]]


def _run(program: str, ranks: list[tuple[str, int, int]], sizes: tuple[int, int], **settings: str) -> list[str]:
    """Output of each process. ranks: (kind, rank in the first job, rank in the second job); -1 if it is not in it."""
    first, second = _free_ports()
    started = []
    for kind, rank, following in ranks:
        own = (rank, sizes[0], first) if rank >= 0 else (following, sizes[1], second)
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "NEXT_RANK", "NEXT_SIZE", "NEXT_PORT")
        variables = dict(zip(names, map(str, (*own, following, sizes[1], second)), strict=True))
        variables |= settings | {
            "KIND": kind,
            "MASTER_ADDR": "127.0.0.1",
            "SIRTAKI_CONTROL": "sockets",
            "SIRTAKI_ELASTIC": "1",
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", _WITHOUT_LAUNCHER + program],
                env=jobs.environment(variables | settings),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        return [job.communicate(timeout=_LIMIT)[0] for job in started]
    finally:
        for job in started:
            job.kill()


@pytest.mark.parametrize(
    ("ranks", "sizes", "ends"),
    [
        pytest.param(
            [("stays", 0, 0), ("dies", 1, -1), ("stays", 2, 1)],
            (3, 2),
            ["0 2 False", None, "1 2 False"],
            marks=pytest.mark.long,
        ),
        (_REPLACED, (2, 2), ["0 2 True", None, "1 2 new"]),
    ],
    ids=["fewer", "replaced"],
)
@pytest.mark.long
def test_torch_goes_on(ranks: list[tuple[str, int, int]], sizes: tuple[int, int], ends: list[str | None]) -> None:
    """Parameters are bit-equal to those of an undisturbed run where the number of ranks is the same."""
    outputs = _run(_TORCH, ranks, sizes)
    found = [re.search(r"^done (.*)$", output, re.MULTILINE) for output in outputs]
    assert [match and match[1] for match in found] == ends, "\n".join(outputs)


@pytest.mark.parametrize(
    ("program", "backend", "error"),
    [
        pytest.param(_TENSORFLOW, "tensorflow", "UnknownError", marks=pytest.mark.long),
        pytest.param(_KERAS, "tensorflow", "UnknownError", marks=pytest.mark.long),
        pytest.param(_KERAS, "torch", "SirtakiInternalError", marks=pytest.mark.long),
    ],
    ids=["tensorflow", "keras", "keras-torch"],
)
def test_compiled_steps_go_on(program: str, backend: str, error: str) -> None:
    """The rank that stays does not trace its functions again, the new one traces them then."""
    outputs = _run(program + _STEPS, _REPLACED, (2, 2), KERAS_BACKEND=backend, ERROR=error)
    found = [re.search(r"^done (.*)$", output, re.MULTILINE) for output in outputs]
    assert [match and match[1] for match in found] == ["0 2 4", None, "1 2 4"], "\n".join(outputs)


def test_ranks_that_die_anywhere() -> None:
    """The others end with the result of an undisturbed run. `tests/faults/elastic_runs.py` takes many other seeds."""
    outcome = elastic_runs.execute(elastic_runs.Run("a", 3, 1, 6, elastic_runs.DEATHS), "a")
    assert outcome.complaint == "", outcome.output
    assert outcome.kinds.total() > 2


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("frozen", marks=pytest.mark.long),
        pytest.param("half-open", marks=pytest.mark.long),
        "half-closed",
        pytest.param("stopped", marks=pytest.mark.long),
        pytest.param("paused", marks=pytest.mark.long),
    ],
)
def test_a_rank_is_silent_but_not_dead(kind: str) -> None:
    """And it does not keep the others from their result. Each rank is on a host of its own, as the ranks see it."""
    outcome = elastic_runs.execute(elastic_runs.Run("silent", 3, 3, 1, (kind,), start=4), kind)
    assert outcome.complaint == "", outcome.output
    assert outcome.kinds.total() >= 1


def test_slots_come_and_go(tmp_path: Path) -> None:
    """No step is lost or done twice, and removed ranks end well."""
    program, hosts, script = tmp_path / "program.py", tmp_path / "hosts", tmp_path / "discover.sh"
    program.write_text(_SLOTS)
    hosts.write_text("localhost:1")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    words = ["-np", "1", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(script)]
    command = [sys.executable, "-m", "sirtaki.launch", *words, sys.executable, str(program), str(hosts)]
    done = subprocess.run(command, env=jobs.environment(), capture_output=True, text=True, timeout=_LIMIT)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(re.findall(r"SIZES (.*)", done.stdout)[0])
    assert sizes in ([1, 3, 1], [1, 2, 3, 1], [1, 2, 3, 2, 1], [1, 3, 2, 1]), done.stdout
    assert done.stderr.count("this process leaves the job: its slot was removed") == 2, done.stderr


def test_digits_are_learned_although_a_rank_dies() -> None:
    example = Path(__file__).parents[2] / "examples/elastic_digits.py"
    command = [sys.executable, "-m", "sirtaki.launch", "-np", "2", "--min-np", "1", sys.executable, str(example)]
    words = ["--kill-at", "20", "--steps", "150"]
    done = subprocess.run([*command, *words], env=jobs.environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rank 1, process 1 on host" in done.stderr
    found = re.search(r"Sizes after changes: \[1, 2\], test accuracy: (\d\.\d{4})$", done.stdout, re.MULTILINE)
    assert found and float(found[1]) > 0.95, done.stdout + done.stderr
