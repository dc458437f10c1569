"""A child that TensorFlow's rank forks, and several threads of a rank at once."""

import os
import threading

import tensorflow as tf
from forking import in_forked_child
from ranks import ranks

import sirtaki.tensorflow as hvd


def refused() -> str:
    try:
        hvd.allreduce(tf.ones(2), name="child's")
    except tf.errors.FailedPreconditionError as error:
        return str(error)
    return "was not refused"


@ranks(2)
def test_a_forked_child():
    assert hvd.allreduce(tf.ones(2), name="before", op=hvd.Sum).numpy().tolist() == [2, 2]
    assert in_forked_child(lambda: [hvd.rank(), hvd.size()]) == str([hvd.rank(), 2])
    text = in_forked_child(refused)
    assert f"was forked from a rank (process {os.getpid()})" in text, text


@ranks(2)
def test_several_threads_at_once():
    wrong = []

    def add_up(thread):
        for step in range(20):
            summed = hvd.allreduce(tf.fill([4], float(thread + step)), name=f"thread {thread}", op=hvd.Sum)
            if summed.numpy().tolist() != [2.0 * (thread + step)] * 4:
                wrong.append((thread, step, summed))

    threads = [threading.Thread(target=add_up, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
