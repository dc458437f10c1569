"""The program of docs/first_job.md: it finds eight numbers by training, on any number of processes."""

import argparse

import torch

import sirtaki.torch as hvd

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--fail-at", type=int, default=-1, metavar="STEP", help="the last rank fails in this step")
arguments = parser.parse_args()

hvd.init()
torch.manual_seed(7)  # the same data and the same model on every rank
x = torch.randn(1024, 8)
y = x @ torch.arange(8.0).unsqueeze(1)
x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]  # this rank's part

model = torch.nn.Linear(8, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for step in range(arguments.steps):
    if step == arguments.fail_at and hvd.rank() == hvd.size() - 1:
        raise ValueError(f"this rank has had enough in step {step}")
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()

print(f"rank {hvd.rank()} of {hvd.size()}, {len(x)} rows: {[round(w, 2) for w in model.weight[0].tolist()]}")
