"""One rank of a job in which a process goes wrong: steps of allreduces of whole numbers, every sum looked at.

FAULT: JSON with "kind", "rank" and "operation", after whose submission that rank does what the kind says.
"""

import json
import os
import signal
import sys

import numpy as np

import sirtaki
from sirtaki.native import core

fault = json.loads(os.environ["FAULT"])
sirtaki.init()
rank, size = sirtaki.rank(), sirtaki.size()
operation = 0


def strike() -> None:
    kind = fault["kind"]
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exit code":
        os._exit(3)
    elif kind == "exit code 0":
        os._exit(0)
    elif kind == "left early":
        sys.exit(0)
    elif kind == "exception":
        raise RuntimeError(f"boom in operation {operation}")


def begin(name: str, data: np.ndarray) -> object:
    global operation
    tensor = (data.ctypes.data, data.ctypes.data, core.DTYPES["float64"], data.shape, -1)
    work = core.submit(core.VERBS["allreduce"], name, [tensor], op=core.OPS["sum"], site="rank_program.py")
    if rank == fault["rank"] and operation == fault["operation"]:
        strike()
    operation += 1
    return work


for step in range(fault["steps"]):
    arrays = [np.arange(count) % 97 + float(step + rank) for count in fault["counts"]]
    works = [begin(f"t{number}", array) for number, array in enumerate(arrays)]
    for work in works:
        work.wait()
    for array in arrays:
        right = size * (np.arange(len(array)) % 97 + step) + size * (size - 1) / 2
        if not np.array_equal(array, right):
            print(f"WRONG SUM on rank {rank} in step {step}", flush=True)
            os._exit(4)
print(f"RIGHT SUMS on rank {rank}", flush=True)
