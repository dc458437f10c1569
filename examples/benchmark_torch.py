"""PyTorch's side of synthetic_benchmark.py: the model, one step of training, and the exchange of its gradients."""

import argparse
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_models
from synthetic_report import NO_COMMUNICATION


class Benchmark:
    """See synthetic_benchmark.py for what each member means."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.dtype = arguments.dtype
        self.hvd = None
        if not arguments.no_sirtaki:
            import sirtaki.torch as hvd

            hvd.init()
            self.hvd = hvd
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        self.threads = torch.get_num_threads()
        self.versions = {"torch": torch.__version__}
        on_gpu = torch.cuda.is_available() and not arguments.no_cuda
        self.device = "GPU" if on_gpu else "CPU"
        self.place = torch.device("cpu")
        if on_gpu:  # each local rank has a GPU of its own, as far as there are enough
            local_rank = self.hvd.local_rank() if self.hvd else 0
            self.place = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.place)
            torch.backends.cudnn.benchmark = True
            self.versions["GPU"] = torch.cuda.get_device_name()
        torch.manual_seed(1)
        self.inputs, self.labels = torch_models.batch(arguments, self.place)
        self.gradients: list[torch.Tensor] = []

    def count_ranks(self) -> int:
        return int(self.hvd.allreduce(torch.ones(1, device=self.place), name="count_ranks", op=self.hvd.Sum))

    @property
    def wire_dtype(self) -> str:
        if self.arguments.bf16_allreduce:
            return "bfloat16"
        return "float16" if self.arguments.fp16_allreduce else "float32"  # autocast keeps weights in float32

    @property
    def compression(self):
        """The adapter's class that casts gradients to wire_dtype and back."""
        choices = self.hvd.Compression
        return {"bfloat16": choices.bf16, "float16": choices.fp16, "float32": choices.none}[self.wire_dtype]

    def trainer(self, distributed: bool) -> Callable[[], float]:
        """A model and an optimizer of their own; the function returned trains one batch."""
        return self.make_trainer(distributed, self.arguments.capture)

    def make_trainer(self, distributed: bool, capture: bool) -> Callable[[], float]:
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if distributed:
            optimizer = self.distribute(model, optimizer)
            self.gradients = [
                torch.zeros_like(parameter, memory_format=torch.contiguous_format) for parameter in model.parameters()
            ]
        if capture:
            return self.captured(model, optimizer)
        computed = [math.nan]  # when the first layer had its gradient: what backward does after that is wait for others
        # Adasum waits within step(); a GPU works on while the host goes ahead.
        if not self.arguments.use_adasum and self.device == "CPU":
            first = next(model.parameters())
            first.register_post_accumulate_grad_hook(lambda _: computed.__setitem__(0, time.perf_counter()))

        def train() -> float:
            optimizer.zero_grad()
            self.loss(model, self.inputs, self.labels).backward()
            waited = time.perf_counter() - computed[0]
            optimizer.step()
            return waited

        return train

    def captured(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], float]:
        import sirtaki.torch

        def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            # What autocast keeps from one use of a weight to the next would be made outside the graph.
            loss = self.loss(model, inputs, labels, keeps=False)
            loss.backward()
            optimizer.step()
            return loss

        graph = sirtaki.torch.capture(step, self.inputs, self.labels, optimizer=optimizer, warmup=11)

        def train() -> float:
            graph(self.inputs, self.labels)
            return math.nan

        return train

    def model(self) -> torch.nn.Module:
        model = torch_models.make(self.arguments.model).to(self.place)
        return model.to(memory_format=torch.channels_last) if self.arguments.channels_last else model

    def loss(
        self, model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, keeps: bool = True
    ) -> torch.Tensor:
        """keeps: whether autocast keeps a weight that it has cast until the end of the step."""
        dtype = getattr(torch, self.arguments.dtype)
        with torch.autocast(self.place.type, dtype, enabled=dtype != torch.float32, cache_enabled=keeps):
            return F.cross_entropy(model(inputs), labels)

    def peers(self) -> dict[str, Callable[[], float]]:
        """What synthetic_benchmark.py compares with, beside the same model without communication."""
        import torch_peers

        own = {}
        if self.arguments.capture:
            own = {NO_COMMUNICATION: self.make_trainer(False, False), "Sirtaki, eager": self.make_trainer(True, False)}
        return {**own, **torch_peers.peers(self)}

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        hvd, adasum = self.hvd, self.arguments.use_adasum
        if not adasum:  # Adasum keeps the step of one rank; an average of N gradients bears N times the step
            optimizer.param_groups[0]["lr"] *= hvd.size()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self.compression,
            op=hvd.Adasum if adasum else hvd.Average,
        )

    def adapter_seconds(self) -> float:
        from torch_adapter_cost import adapter_seconds

        return adapter_seconds(self.hvd, [gradient.nbytes for gradient in self.gradients])

    def exchange(self) -> None:
        compression = self.compression
        wire = [compression.compress(gradient) for gradient in self.gradients]
        handles = [
            self.hvd.allreduce_async_(tensor, name=f"exchange.{index}", op=self.hvd.Sum)
            for index, (tensor, _) in enumerate(wire)
        ]
        for handle, (_, context) in zip(handles, wire, strict=True):
            compression.decompress(self.hvd.synchronize(handle), context)

    def finish(self) -> None:
        if self.device == "GPU":
            torch.cuda.synchronize()
