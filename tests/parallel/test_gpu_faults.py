"""A rank that dies while another one's GPU waits for it. Needs a GPU for each of two ranks."""

import re
import subprocess
import sys
import time

import jobs
import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

PROGRAM = """
import os, signal, sys, torch, sirtaki.torch as hvd
hvd.init()
torch.cuda.set_device(hvd.local_rank())
tensor = torch.ones(64 << 20, device="cuda")
hvd.allreduce_(tensor, name="x")
torch.cuda.synchronize()
hvd.barrier()
if hvd.rank() == 1:
    torch.cuda._sleep(10**10)  # its part of the next collective is queued behind this
hvd.allreduce_(tensor, name="x")
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print("waits", flush=True)
tensor.sum().item()
try:
    hvd.allreduce_(tensor, name="y")
except hvd.HorovodInternalError as error:
    print("ended:", error, flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize("launcher", ["sirtakirun", "mpiexec"])
def test_gpu_waits_for_a_rank_that_dies(launcher: str, tmp_path) -> None:
    """Everything ends within 10 s, with the cause: also where no launcher ends the other rank."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, "-m", "sirtaki.launch", "-np", "2"]
    if launcher == "mpiexec":
        words = jobs.command(2, jobs.UNNOTICED)
    with (tmp_path / "output").open("wb") as file:
        job = subprocess.Popen(
            [*words, sys.executable, str(program)],
            stdout=file,
            stderr=file,
            env=jobs.environment(),
            start_new_session=True,
        )
    output = tmp_path / "output"
    began = time.monotonic()
    try:
        while b"waits" not in output.read_bytes() and time.monotonic() - began < 60 and job.poll() is None:
            time.sleep(0.1)
        since = time.monotonic()
        code = job.wait(30)
    finally:
        jobs.kill(job)
    text = output.read_text(errors="replace")
    assert code not in (0, None) and time.monotonic() - since < 10, text
    cause = r"ended: rank \d on host .* has died" if launcher == "mpiexec" else "rank 1"
    assert re.search(cause, text), text
