"""A program for elastic jobs: it counts agreed steps, and commits after each. argv: steps, then NUMBER@STEP=SIGNAL or
NUMBER@STEP=exit:CODE for a process that ends (by the number of its process), or file:STEP=PATH, which all wait for.
"""

import os
import signal
import sys
import time
import types

import sirtaki as hvd
from sirtaki import exchange
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.job.rank import membership_updates

elastic = sys.modules.setdefault("sirtaki.elastic", types.ModuleType("sirtaki.elastic"))
elastic.progress = 0
steps = int(sys.argv[1])
plans = dict(word.split("=", 1) for word in sys.argv[2:])
number = os.environ["HOROVOD_RANK"]


def say(*words: object) -> None:
    print(*words, flush=True)


def step() -> None:
    plan = plans.get(f"{number}@{elastic.progress}", "")
    if plan.startswith("exit:"):
        sys.exit(int(plan[5:]))
    elif plan == "raise":
        raise ValueError("a fault of the program")
    elif plan:
        os.kill(os.getpid(), signal.Signals[plan])
    path = plans.get(f"file:{elastic.progress}")
    while path and not os.path.exists(path):
        time.sleep(0.01)
    update = membership_updates.take()
    changes = exchange.allgather_bytes(str(update[1] if update else 0).encode(), "step")
    elastic.progress += 1
    if any(change != b"0" for change in changes):
        result = max(map(int, changes))
        say("changed", result, "at", elastic.progress)
        raise InterruptedError


def wait_for_size() -> None:
    """size:STEP=N: trains on slowly before this step until the job has N ranks."""
    wanted = int(plans.get(f"size:{elastic.progress}", "0"))
    while wanted and hvd.size() != wanted:
        update = membership_updates.take()
        changes = exchange.allgather_bytes(str(update[1] if update else 0).encode(), "waiting")
        if any(change != b"0" for change in changes):
            raise InterruptedError
        time.sleep(0.02)


hvd.init()
while True:
    try:
        levels = exchange.allgather_bytes(str(elastic.progress).encode(), "sync")
        assert int(levels[0]) == max(map(int, levels)), levels
        elastic.progress = int(levels[0])
        say("rank", hvd.rank(), "of", hvd.size(), "at", elastic.progress)
        while elastic.progress < steps:
            wait_for_size()
            step()
        break
    except (SirtakiInternalError, InterruptedError) as error:
        if isinstance(error, SirtakiInternalError):
            say("lost:", str(error).partition("\n")[0])
        hvd.shutdown()
        hvd.init()
say("done", elastic.progress)
