"""torch and TensorFlow in one process share one engine."""

from pathlib import Path

import pytest
from jobs import run_script

LATENCY = Path(__file__).parents[2] / "examples/tensorflow_latency.py"


@pytest.mark.long
def test_torch_and_tensorflow_in_one_process():
    """Their collectives meet each other: a torch tensor of one rank with a TensorFlow tensor of another. The example
    that compares them comes first.
    """
    ended = run_script(
        2,
        f"""
        import runpy, sys
        sys.argv = ["example", "--repeats", "3", "--rounds", "2"]
        runpy.run_path({str(LATENCY)!r}, run_name="__main__")
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
    assert "1024 bytes on 2 ranks" in ended.output and ended.output.count("x torch") == 6, ended.output
