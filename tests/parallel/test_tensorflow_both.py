"""torch and TensorFlow in one process share one engine."""

import sys
import tempfile
from pathlib import Path

from jobs import kill, run_script, start


def test_torch_and_tensorflow_in_one_process():
    """Their collectives meet each other: a torch tensor of one rank with a TensorFlow tensor of another."""
    ended = run_script(
        2,
        """
        import torch, tensorflow as tf
        import sirtaki.torch, sirtaki.tensorflow
        sirtaki.torch.init()
        sirtaki.tensorflow.init()
        rank = sirtaki.tensorflow.rank()
        assert (rank, 2) == (sirtaki.torch.rank(), sirtaki.tensorflow.size())
        handle = sirtaki.torch.allreduce_async(torch.ones(4), op=sirtaki.torch.Sum, name="torch")
        graph = tf.function(lambda: sirtaki.tensorflow.allreduce(tf.ones(4), op=sirtaki.tensorflow.Sum, name="both"))
        assert graph().numpy().tolist() == [2.0] * 4
        assert sirtaki.torch.synchronize(handle).tolist() == [2.0] * 4
        if rank == 0:
            mixed = sirtaki.torch.allreduce(torch.full((3,), 1.0), op=sirtaki.torch.Sum, name="mixed").tolist()
        else:
            mixed = sirtaki.tensorflow.allreduce(tf.fill([3], 5.0), op=sirtaki.tensorflow.Sum, name="mixed")
            mixed = mixed.numpy().tolist()
        assert mixed == [6.0] * 3, mixed
        pair = sirtaki.torch.ProcessSet([1])
        assert sirtaki.tensorflow.global_process_set is sirtaki.torch.global_process_set
        sirtaki.torch.shutdown()
        assert not sirtaki.tensorflow.is_initialized()
        print("one engine")
        """,
        limit=120,
    )
    assert ended.code == 0 and ended.output.count("one engine") == 2, ended.output


def test_latency_example():
    program = Path(__file__).parents[2] / "examples/tensorflow_latency.py"
    with tempfile.NamedTemporaryFile() as output:
        job = start(2, [sys.executable, str(program), "--repeats", "3", "--rounds", "2"], Path(output.name))
        try:
            assert job.wait(120) == 0, Path(output.name).read_text()
        finally:
            kill(job)
        lines = Path(output.name).read_text().splitlines()
    assert lines[0].startswith("1024 bytes on 2 ranks")
    assert sum("x torch" in line for line in lines) == 6
