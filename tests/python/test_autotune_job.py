"""`--autotune` in a job that trains, to the end of its search."""

import json
import re
from pathlib import Path

import pytest
from launching import run, written

TRAINING = """
import json, torch, sirtaki.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
torch.manual_seed(hvd.rank())
tuner = optimizer._distributed.reducer._tuner
steps = 0
while not tuner.over and steps < 500:
    optimizer.zero_grad()
    model(torch.randn(8, 128)).square().sum().backward()
    optimizer.step()
    steps += 1
units = [len(unit.slots) for unit in optimizer._distributed.reducer.buckets]
total = sum(float(parameter.double().sum()) for parameter in model.parameters())
print(json.dumps([tuner.over, steps, tuner._current, units, total]), flush=True)
"""


@pytest.mark.long
def test_the_search_ends_and_all_ranks_keep_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    flags = ("--autotune", "--autotune-log-file", str(log), "--autotune-warmup-samples", "1")
    flags = (*flags, "--autotune-steps-per-sample", "2")
    done = run("-np", "2", *flags, *written(tmp_path, TRAINING, start=""))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line.partition(" ")[2]) for line in done.stdout.decode().splitlines()]
    assert len(results) == 2 and results[0] == results[1], results
    over, steps, (bucket, threshold), _, _ = results[0]
    assert over and steps < 500
    (line,) = [line for line in done.stderr.decode().splitlines() if "autotune:" in line]
    if "nothing was won, so nothing is changed" in line:
        assert bucket == 1.0
    else:
        found = re.search(r"buckets of ([\d.]+) times the usual size, fusion threshold (\d+) MiB: ([\d.]+)% less", line)
        assert found, line
        assert (float(found[1]), int(found[2])) == (bucket, threshold >> 20) and float(found[3]) >= 3
    measured = log.read_text().splitlines()[1:]
    assert len(measured) in (7, 9, 11), measured  # the winner is compared once or twice, if it is another one
