"""The timeline together with TensorFlow's profiler."""

import glob
import tempfile
from pathlib import Path

import tensorflow as tf
from ranks import ranks
from traces import check_chrome, read_any

import sirtaki.tensorflow as hvd
from sirtaki.launch import timeline_command


@ranks(2)
def test_together_with_a_profile_of_tensorflow(rank_count):
    with tempfile.TemporaryDirectory() as own:
        folder = Path(hvd.broadcast_object(own, 0, name="folder"))
        ours, both = folder / "ours.json", folder / "both.json"
        hvd.start_timeline(str(ours))
        hvd.allreduce(tf.ones(4), name="first")
        if hvd.rank() == 0:
            tf.profiler.experimental.start(str(folder / "theirs"))
        hvd.allreduce(tf.ones(4), name="profiled")
        tf.linalg.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
        if hvd.rank() == 0:
            tf.profiler.experimental.stop()
        hvd.allreduce(tf.ones(4), name="last")
        hvd.stop_timeline()
        hvd.allreduce(tf.ones(4), name="all have stopped")
        if hvd.rank() == 0:
            (theirs,) = glob.glob(str(folder / "theirs/**/*.xplane.pb"), recursive=True)
            assert timeline_command.main(["merge", str(ours), theirs, "-o", str(both)]) == 0
            _check_order(check_chrome(ours), read_any(both)["traceEvents"])
        hvd.allreduce(tf.ones(4), name="all have read")


def _check_order(trace, events):
    """What TensorFlow has recorded lies between the first and the last allreduce, on one clock."""
    (host,) = (e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "/host:CPU")
    theirs = [event for event in events if event["pid"] == host and event["ph"] == "X"]
    multiplied = [event for event in theirs if "MatMul" in event["name"]]
    assert multiplied, sorted({event["name"] for event in theirs})
    rows = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    first, last = (
        next(
            e for e in events if e["pid"] == 0 and e["ph"] == "X" and e["tid"] == rows[row] and e["name"] == "ALLREDUCE"
        )
        for row in _rows(trace, "first", "last")
    )
    for event in multiplied:
        assert first["ts"] + first["dur"] <= event["ts"] <= event["ts"] + event["dur"] <= last["ts"]


def _rows(trace, *names):
    found = {row.partition(" / ")[2] for row in trace.rows if row.startswith("rank 0 on ")}
    return [next(row for row in found if row.endswith(name)) for name in names]
