"""Trains on handwritten digits in a job that loses a rank and gets another one, while the others go on.

    sirtakirun -np 2 --min-np 1 python examples/elastic_digits.py --kill-at 60

The last rank is killed at step 60. The others go back to the last commit, and train on. The launcher starts another
process, which becomes a rank at a commit, when it is ready. The lines marked with a number are all that a program needs
for this.
"""

import argparse
import os
import signal

import torch
import torch.nn.functional as F
from torch_digits import accuracy, digits, make_model

import sirtaki.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="examples of one step on each rank")
    parser.add_argument("--kill-at", type=int, default=-1, help="step at which the last rank dies")
    arguments = parser.parse_args()

    hvd.init()
    train_data, test_data = digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(train_data)  # 1: divides the examples that no rank has used in this epoch
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0, sizes=[])  # 2: what all ranks share

    def note_size() -> None:
        state.sizes.append(hvd.size())
        print(f"step {state.step}: rank {hvd.rank()} goes on as one of {hvd.size()}", flush=True)

    state.register_reset_callbacks([note_size])

    def is_over(state: hvd.elastic.TorchState) -> bool:
        """If a rank was killed, when another one has come."""
        return state.step >= arguments.steps and (arguments.kill_at < 0 or len(state.sizes) > 1)

    @hvd.elastic.run  # 3: calls it again when the ranks have changed
    def train(state: hvd.elastic.TorchState) -> None:
        while not is_over(state):
            loader = torch.utils.data.DataLoader(train_data, arguments.batch_size, sampler=sampler)
            for number, (images, labels) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                if state.step == arguments.kill_at and not state.sizes and hvd.rank() == hvd.size() - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                state.step += 1
                sampler.record_batch(number, arguments.batch_size)
                state.commit()  # 4: keeps the state, and admits ranks
            sampler.set_epoch(sampler.epoch + 1)

    train(state)
    right = accuracy(model, test_data)
    if hvd.rank() == 0:
        print(f"Sizes after changes: {state.sizes}, test accuracy: {right:.4f}", flush=True)
    assert right > 0.9, right


if __name__ == "__main__":
    main()
