"""GPT-2 on generated tokens: speed and memory with and without a sharded optimizer.

    sirtakirun -np 2 python examples/gpt2_synthetic.py --modes sharded sirtaki

Several modes take turns, and their speeds are ratios within one run. Peaks are those of one mode if only one is given.

    ddp       torch's DistributedDataParallel         sirtaki   hvd.DistributedOptimizer
    zero      DDP, and ZeroRedundancyOptimizer        sharded   the same with shard_optimizer_state=True
    captured, sharded-captured   the steps of "sirtaki" and of "sharded" as one CUDA graph
"""

import argparse
import contextlib
import statistics
import time

import gpt2
import gpt2_memory
import torch

import sirtaki.torch as hvd

MODES = ("ddp", "zero", "sirtaki", "sharded", "captured", "sharded-captured")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--modes", nargs="+", choices=MODES, default=["sharded"])
    add("--parameters", default="124M", help="about so many: 3M, 124M, 1.5B")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="sharded: of weights; others: autocast")
    add("--free-gradients", action="store_true", help="sharded: free gradients within backward")
    add("--batch-size", type=int, default=1, help="sequences on one rank")
    add("--sequence-length", type=int, default=128)
    add("--rounds", type=int, default=4, help="of each mode, in turns")
    add("--steps", type=int, default=2, help="in a round")
    add("--memory", action="store_true", help="only print a table of the memory by stage")
    add("--memory-fraction", type=float, help="of the GPU's memory that this process may use")
    add("--no-cuda", action="store_true")
    arguments = parser.parse_args()
    factor = {"M": 1e6, "B": 1e9}.get(arguments.parameters[-1:].upper(), 1)
    try:
        arguments.parameters = float(arguments.parameters.rstrip("MBmb")) * factor
    except ValueError:
        parser.error(f"--parameters is a number such as 124M, got {arguments.parameters!r}")
    return arguments


class Training:
    """One model with its optimizer, trained in one of the modes."""

    def __init__(self, mode: str, arguments: argparse.Namespace, place: torch.device) -> None:
        self.mode, self.place = mode, place
        self.shards, captures = mode.startswith("sharded"), mode.endswith("captured")
        self.speeds: list[float] = []
        shape = (arguments.batch_size, arguments.sequence_length + 1)
        generator = torch.Generator().manual_seed(hvd.rank())
        self.tokens = torch.randint(gpt2.TOKENS, shape, generator=generator).to(place)
        self.before = gpt2_memory.held(place)
        torch.manual_seed(1)
        with place:
            self.model = gpt2.Gpt2(*gpt2.shape_of(arguments.parameters))
        self.count = sum(parameter.numel() for parameter in self.model.parameters())
        self.casts = contextlib.nullcontext()
        if arguments.dtype == "bfloat16" and self.shards:
            self.model.bfloat16()
        elif arguments.dtype == "bfloat16":
            self.casts = torch.autocast(place.type, torch.bfloat16, cache_enabled=not captures)
        self.optimizer = self.make_optimizer(arguments)
        for _ in range(2):
            self.step(measures=True)
        if captures:
            captured = hvd.capture(self.step, self.tokens, optimizer=self.optimizer)
            self.run = lambda: captured(self.tokens)
        else:
            self.run = self.step

    def make_optimizer(self, arguments: argparse.Namespace) -> torch.optim.Optimizer:
        options = {"lr": 1e-4, "capturable": self.place.type == "cuda"}
        if self.mode in ("ddp", "zero"):
            import torch_group
            from torch.distributed.optim import ZeroRedundancyOptimizer
            from torch.nn.parallel import DistributedDataParallel

            if not torch.distributed.is_initialized():
                torch_group.start()
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
            if self.mode == "zero":
                return ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, **options)
            return torch.optim.AdamW(self.model.parameters(), **options)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        shards = {"shard_optimizer_state": True, "free_gradients": arguments.free_gradients}
        return hvd.DistributedOptimizer(
            torch.optim.AdamW(self.model.parameters(), **options),
            named_parameters=self.model.named_parameters(),
            **(shards if self.shards else {}),
        )

    def step(self, tokens: torch.Tensor | None = None, measures: bool = False) -> torch.Tensor:
        self.optimizer.zero_grad()
        with self.casts:
            loss = self.model(self.tokens if tokens is None else tokens)
        loss.backward()
        if measures:
            loss = loss.detach()
            self.held = gpt2_memory.held(self.place) - self.before
        self.optimizer.step()
        return loss.detach()

    def round(self, steps: int) -> None:
        start = time.perf_counter()
        for _ in range(steps):
            self.run()
        if self.place.type == "cuda":
            torch.cuda.synchronize()
        tokens = self.tokens.shape[0] * (self.tokens.shape[1] - 1) * steps * hvd.size()
        self.speeds.append(tokens / (time.perf_counter() - start))


def report(training: Training, arguments: argparse.Namespace, first: float) -> str:
    speed = max(training.speeds)
    stage = gpt2_memory.stage_of(training.mode, arguments.free_gradients)
    formula = "" if stage is None else f" (formula {gpt2_memory.STAGES[stage][arguments.dtype](hvd.size()):.2f})"
    speeds = (
        f"{statistics.median(training.speeds):.1f} tokens/s, best {speed:.1f} = {speed / first:.3f} of the first mode"
    )
    return f"{training.mode}: {speeds}; {training.held / training.count:.2f} bytes a parameter after backward{formula}"


def main() -> None:
    arguments = parse()
    shape = gpt2.shape_of(arguments.parameters)
    if arguments.memory:
        print("\n".join(gpt2_memory.table(gpt2.count(*shape), arguments.dtype)))
        return
    hvd.init()
    on_gpu = torch.cuda.is_available() and not arguments.no_cuda
    if not on_gpu and any("captured" in mode for mode in arguments.modes):
        raise SystemExit("--modes captured needs a CUDA GPU: a step becomes a CUDA graph. Leave it out on the CPU")
    place = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(place)
        if arguments.memory_fraction is not None:
            torch.cuda.set_per_process_memory_fraction(arguments.memory_fraction, place)
    trainings = [Training(mode, arguments, place) for mode in arguments.modes]
    for _ in range(arguments.rounds):
        for training in trainings:
            training.round(arguments.steps)
    if hvd.rank() == 0:
        print(f"GPT-2 with {trainings[0].count:,} parameters, {arguments.dtype}, {hvd.size()} rank(s) on {place.type}")
        first = max(trainings[0].speeds)
        print("\n".join(report(training, arguments, first) for training in trainings))
        print(gpt2_memory.peaks(place))


if __name__ == "__main__":
    main()
