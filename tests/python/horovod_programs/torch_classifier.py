"""A program for Horovod: a torch classifier on generated data, under horovodrun or, with --num-proc, by horovod.run."""

import argparse

import horovod
import horovod.torch as hvd
import torch
import torch.nn.functional as F
import torch.utils.data.distributed
from horovod.common.util import gpu_available, nccl_built
from packaging.version import Version

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--gradient-predivide-factor", type=float, default=2.0)
parser.add_argument("--num-proc", type=int)
parser.add_argument("--communication")


def part_of_this_rank(count: int, seed: int) -> tuple[torch.utils.data.Sampler, torch.utils.data.DataLoader]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(4, (count,), generator=generator)
    data = torch.eye(4)[target] + 0.3 * torch.randn(count, 4, generator=generator)
    dataset = torch.utils.data.TensorDataset(data, target)
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    return sampler, torch.utils.data.DataLoader(dataset, batch_size=16, sampler=sampler)


def train(args: argparse.Namespace) -> float:
    hvd.init()
    torch.manual_seed(42 + hvd.rank())
    sampler, batches = part_of_this_rank(512, seed=1)
    test_sampler, test_batches = part_of_this_rank(128, seed=2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        op=hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for data, target in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(data), target).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            with optimizer.skip_synchronize():
                optimizer.step()
    right = sum(int((model(data).argmax(1) == target).sum()) for data, target in test_batches)
    accuracy = hvd.allreduce(torch.tensor(right / len(test_sampler)), name="accuracy").item()
    if hvd.rank() == 0:
        print(f"Accuracy on {hvd.size()} ranks: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    args = parser.parse_args()
    assert Version(horovod.__version__) >= Version("0.28.0")
    assert tuple(map(int, horovod.__version__.split(".")[:3])) >= (0, 28, 0)
    assert gpu_available("torch") == torch.cuda.is_available() and nccl_built() in (True, False)
    if args.num_proc:
        mpi = args.communication == "mpi"
        found = horovod.run(train, args=(args,), np=args.num_proc, use_mpi=mpi, use_gloo=False, verbose=2)
        print(f"horovod.run: {len(found)} equal results: {len(set(found)) == 1}")
    else:
        train(args)
