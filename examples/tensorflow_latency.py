"""Time of one small allreduce from torch, from TensorFlow's eager mode and within a graph, in one run on one engine.

    sirtakirun -np 2 python examples/tensorflow_latency.py

The graph holds a chain of allreduces, each of which needs the one before, so that its time is that of the op alone.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import torch

import sirtaki.tensorflow
import sirtaki.torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bytes", type=int, default=1024, help="size of the float32 tensor (default: %(default)s)")
parser.add_argument("--repeats", type=int, default=50, help="allreduces in one measurement (default: %(default)s)")
parser.add_argument("--rounds", type=int, default=15, help="measurements of each kind (default: %(default)s)")
arguments = parser.parse_args()

sirtaki.tensorflow.init()
count = arguments.bytes // 4
dense, tensor = torch.ones(count), tf.ones([count])


@tf.function
def chain(x):
    for number in range(arguments.repeats):
        x = sirtaki.tensorflow.allreduce(x, name=f"chain.{number}")
    return x


@tf.function
def single(x):
    return sirtaki.tensorflow.allreduce(x, name="single")


@tf.function
def nothing(x):
    return x + 1.0


def repeated(call):
    return lambda: [call() for _ in range(arguments.repeats)]


KINDS = {
    "torch": repeated(lambda: sirtaki.torch.allreduce(dense, name="torch")),
    "TensorFlow, in a graph": lambda: chain(tensor),
    "TensorFlow, a function of one": repeated(lambda: single(tensor)),
    "  an addition, a function of one": repeated(lambda: nothing(tensor)),
    "TensorFlow, eager": repeated(lambda: sirtaki.tensorflow.allreduce(tensor)),
    "  an addition, eager": repeated(lambda: tensor + 1.0),
}

times = {name: [] for name in KINDS}
for call in KINDS.values():
    call()
for _ in range(arguments.rounds):
    for name, call in KINDS.items():
        sirtaki.torch.barrier()
        start = time.perf_counter()
        call()
        times[name].append((time.perf_counter() - start) / arguments.repeats * 1e6)

if sirtaki.tensorflow.rank() == 0:
    print(f"{arguments.bytes} bytes on {sirtaki.tensorflow.size()} ranks, microseconds for one allreduce")
    base = statistics.median(times["torch"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"  {name:34} best {min(values):8.1f}   median {median:8.1f}   {median / base:5.2f} x torch")
