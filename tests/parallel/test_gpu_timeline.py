"""A timeline of collectives on GPUs: the times at which the GPU itself worked on them."""

import json
import time
from pathlib import Path

import torch
from gpu import busy, needs_gpu, own_gpu
from ranks import ranks

import sirtaki.torch as hvd
from sirtaki.timeline.chrome_trace import HEADER

pytestmark = needs_gpu
BATCHES = 5


@ranks(2)
def test_the_gpus_row_of_a_timeline(rank_count, tmp_path):
    gpu = own_gpu()
    path = hvd.broadcast_object(str(tmp_path / "t.json"))
    tensor = torch.ones(1 << 20, device=gpu)
    hvd.allreduce(tensor, name="before", op=hvd.Sum)
    hvd.start_timeline(path)
    hvd.barrier()
    moments = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        moments.append(time.monotonic_ns())
        busy(5)
        hvd.allreduce_(tensor, name="timed", op=hvd.Sum)
        torch.cuda.synchronize()
        moments.append(time.monotonic_ns())
    hvd.stop_timeline()
    hvd.barrier()
    events = json.loads(Path(path).read_text())
    zero = next(event["args"]["monotonic_ns"] for event in events if event["name"] == HEADER)
    row = next(
        event["tid"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == hvd.rank() and event["args"]["name"] == "GPU"
    )
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == hvd.rank() and e["tid"] == row]
    assert [span["name"] for span in spans] == ["ALLREDUCE"] * BATCHES
    assert {span["args"]["bytes"] for span in spans} == {4 << 20}
    for number, span in enumerate(spans):
        begin, end = zero + span["ts"] * 1e3, zero + (span["ts"] + span["dur"]) * 1e3
        assert moments[2 * number] + 2e6 < begin < end < moments[2 * number + 1] + 1e5, "behind what it waits for"
