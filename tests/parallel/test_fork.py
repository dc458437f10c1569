"""Processes and threads that a rank starts: data loaders' workers, forked children, subprocesses, several threads."""

import os
import subprocess
import sys
import threading

import jobs
import pytest
import torch
from forking import in_forked_child, refusal_of
from ranks import ranks
from torch.utils.data import DataLoader, Dataset

import sirtaki.torch as hvd
from sirtaki.native import core


class WhoAmI(Dataset):
    """Items tell the rank that a worker believes to be: rank 1 of 2 gives [1, 2], who is none gives [-1, -1]."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([hvd.rank(), hvd.size()] if hvd.is_initialized() else [-1, -1])


@ranks(2)
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_of_a_data_loader(method):
    """A forked worker may ask for its rank; collectives go on while workers come and go."""
    loader = DataLoader(WhoAmI(), num_workers=1, multiprocessing_context=method)
    for step, batch in enumerate(loader):
        assert batch.tolist() == [[hvd.rank(), hvd.size()] if method == "fork" else [-1, -1]]
        assert hvd.allreduce(torch.ones(3), name="step", op=hvd.Sum).tolist() == [2, 2, 2], step


@ranks(2)
def test_what_a_forked_child_may_call():
    pending = hvd.allreduce_async(torch.ones(2), name=f"only on {hvd.rank()}")
    assert in_forked_child(lambda: [hvd.is_initialized(), hvd.rank(), hvd.local_rank(), hvd.size()]) == str(
        [True, hvd.rank(), hvd.local_rank(), 2]
    )
    for call in (
        lambda: hvd.allreduce(torch.ones(2), name="child's"),
        lambda: hvd.synchronize(pending),
        lambda: hvd.broadcast_object({"a": 1}),
        lambda: hvd.add_process_set([0]),
        hvd.join,
        core.process_sets,
    ):
        text = in_forked_child(lambda call=call: refusal_of(call))
        assert f"was forked from a rank (process {os.getpid()})" in text, text
    assert in_forked_child(hvd.shutdown) == "None"
    assert "is no rank itself" in in_forked_child(lambda: refusal_of(hvd.init))
    other = hvd.allreduce_async(torch.ones(2), name=f"only on {1 - hvd.rank()}")
    assert hvd.synchronize(pending).tolist() == hvd.synchronize(other).tolist() == [1, 1]


@ranks(2)
def test_several_threads_at_once():
    """Each with names of its own; of one name in use twice at a time, the second is refused."""
    wrong = []

    def add_up(thread):
        for step in range(30):
            summed = hvd.allreduce(torch.full((5,), float(thread + step)), name=f"thread {thread}", op=hvd.Sum)
            if summed.tolist() != [2.0 * (thread + step)] * 5:
                wrong.append((thread, step, summed))

    threads = [threading.Thread(target=add_up, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    held = hvd.allreduce_async(torch.ones(1), name=f"mine {hvd.rank()}")
    refused = []

    def again():
        try:
            hvd.allreduce_async(torch.ones(1), name=f"mine {hvd.rank()}")
        except ValueError as error:
            refused.append(str(error))

    second = threading.Thread(target=again)
    second.start()
    second.join()
    assert len(refused) == 1 and "is used again" in refused[0]
    hvd.barrier()  # both have tried
    other = hvd.allreduce_async(torch.ones(1), name=f"mine {1 - hvd.rank()}")
    hvd.synchronize(held), hvd.synchronize(other)


LIFE = """
import multiprocessing, os, subprocess, sys, sirtaki
if multiprocessing.current_process().name == "MainProcess":  # a spawned child would take seconds to load it all
    import torch, sirtaki.torch as hvd
    from torch.utils.data import DataLoader
    early = iter(DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork"))  # before init
def meets(what):
    assert hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum).tolist() == [2, 2], what
def child(number):
    os.environ["CHILD"] = str(number)
for life in range(2):
    sirtaki.init()  # a spawned child, which runs this file too, is refused here
    meets("init")
    assert len([batch for batch in early]) == (8 if life == 0 else 0)
    left = os.fork()
    if left == 0:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]) == 5
    raised = os.fork()
    if raised == 0:
        raise RuntimeError("in a child")
    assert os.waitstatus_to_exitcode(os.waitpid(raised, 0)[1]) == 1
    for method in ("fork", "spawn")[: 2 - life]:
        process = multiprocessing.get_context(method).Process(target=print, args=("from a child",))
        process.start()
        process.join()
        assert process.exitcode == (1 if method == "spawn" else 0)
    assert subprocess.run(["true"]).returncode == 0
    meets("children")
    if life == 0:
        hvd.allreduce_async(torch.ones(2), name="last")
        hvd.shutdown()
print("good", flush=True)
hvd.allreduce_async(torch.ones(2), name=f"last of {hvd.rank()}")
"""


def test_two_lives_with_children():
    """Children that end in any way disturb nobody; a life ends while work is pending, on all ranks or on one."""
    ended = jobs.run_script(2, LIFE, 200)  # it loads torch twice, and starts a dozen processes
    assert ended.code == 0 and ended.output.count("good") == 2, ended.output
    assert ended.output.count("RuntimeError: in a child") == 4, ended.output
    assert ended.output.count("has started and which is no rank itself") == 2, ended.output


POOL = """
import concurrent.futures, multiprocessing, os, sys
def train(number):
    import sirtaki, torch, sirtaki.torch as hvd
    sirtaki.init()
    found = (hvd.size(), hvd.allreduce(torch.full((2,), float(number)), op=hvd.Sum).tolist())
    sirtaki.shutdown()
    return found
def train_all(method, numbers):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return list(pool.map(train, numbers))
if __name__ == "__main__":
    import sirtaki, torch, sirtaki.torch as hvd
    sirtaki.init()
    assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1]
    assert train_all("spawn", [3]) == [(1, [3, 3])]
    assert train_all("forkserver", [4]) == [(1, [4, 4])]
    try:
        train_all("fork", [5])
    except RuntimeError as error:
        assert "by the method spawn or forkserver" in str(error), error
    else:
        raise AssertionError("MPI has started in a forked process")
    assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1]
    sirtaki.shutdown()
    assert train_all("spawn", [6]) == [(1, [6, 6])]
    print("all well")
"""


@pytest.mark.long
def test_an_executor_after_init(tmp_path):
    """C118: of a job of one process without a launcher. Its workers are jobs of their own, during it and after it."""
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    words, environ = [sys.executable, str(script)], jobs.environment()
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0 and ended.stdout == "all well\n", ended
