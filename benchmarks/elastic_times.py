"""How long an elastic job pauses when a rank dies, with a state of 100 MB: from the death to the survivors' next step.

Run it by itself; it starts the job: python benchmarks/elastic_times.py [--megabytes 100] [--ranks 3] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_DIES_AT = 20
_STEPS = 30
_PHASES = ("noticed", "restored", "left", "joined", "synchronized", "stepped")


def train(megabytes: int, folder: Path) -> None:
    """The program of a rank."""
    import torch

    import sirtaki.torch as hvd
    from sirtaki import runtime

    hvd.init()
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1 << 18)) for _ in range(megabytes)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    times: dict[str, float] = {}

    def timed(name: str, call):  # type: ignore[no-untyped-def]
        def wrapper(*arguments, **options):  # type: ignore[no-untyped-def]
            result = call(*arguments, **options)
            times[name] = time.time()
            return result

        return wrapper

    state.restore = timed("restored", state.restore)
    state.sync = timed("synchronized", state.sync)
    runtime.shutdown = timed("left", runtime.shutdown)
    runtime.init = timed("joined", runtime.init)

    @hvd.elastic.run
    def steps(state) -> None:  # type: ignore[no-untyped-def]
        while state.step < _STEPS:
            if state.step == _DIES_AT and os.environ["HOROVOD_RANK"] == "1":
                (folder / "death").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                hvd.allreduce(torch.ones(1000), name="gradients")
            except hvd.HorovodInternalError:
                times["noticed"] = time.time()
                raise
            if "noticed" in times and "stepped" not in times:
                times["stepped"] = time.time()
            state.step += 1
            state.commit()

    steps(state)
    if "stepped" in times:
        (folder / f"times{os.environ['HOROVOD_RANK']}").write_text(json.dumps(times))


def measured(megabytes: int, ranks: int) -> dict[str, float]:
    """One job. Seconds from the death to each phase, on the slowest survivor."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-np", str(ranks), "--min-np", "1", "--blacklist-cooldown-range", "60", "60"]
        program = [sys.executable, __file__, "--megabytes", str(megabytes), "--folder", folder]
        subprocess.run([sys.executable, "-m", "sirtaki.launch", *words, *program], check=True, capture_output=True)
        death = float(Path(folder, "death").read_text())
        found = [json.loads(path.read_text()) for path in Path(folder).glob("times*")]
    return {phase: max(times[phase] for times in found) - death for phase in _PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        train(arguments.megabytes, arguments.folder)
        return
    runs = [measured(arguments.megabytes, arguments.ranks) for _ in range(arguments.runs)]
    print("seconds after the death | " + " | ".join(_PHASES))
    for name, choose in (("best", min), ("median", statistics.median), ("worst", max)):
        print(f"{name} | " + " | ".join(f"{choose([run[phase] for run in runs]):.3f}" for phase in _PHASES))


if __name__ == "__main__":
    main()
