"""A program for Horovod: training speed of a torch model on random data, with the options that such programs have."""

import argparse
import timeit

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.torch.compression import Compression
from horovod.torch.mpi_ops import Adasum, Average

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--num-iters", type=int, default=2)
args = parser.parse_args()

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 128), hvd.SyncBatchNorm(128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
scaler = 1 if args.use_adasum else hvd.size()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01 * scaler),
    named_parameters=model.named_parameters(),
    compression=Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    op=Adasum if args.use_adasum else Average,
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
data, target = torch.randn(16, 64), torch.randint(10, (16,))


def step() -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()


timeit.timeit(step, number=2)
for index in range(args.num_iters):
    seconds = timeit.timeit(step, number=2)
    if hvd.rank() == 0:
        print(f"Iter #{index}: {2 * 16 / seconds:.1f} img/sec per CPU")
weights = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).unsqueeze(0))
assert torch.equal(weights[0], weights[1]), "the ranks have different weights"
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks have the same weights")
