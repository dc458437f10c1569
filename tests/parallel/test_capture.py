"""What capture has the ranks agree on, without a GPU: a graph that records nothing, NCCL that does nothing."""

import contextlib

import pytest
import torch
from ranks import ranks
from sharded_training import SmallNet, check_same_bits, data, distributed, sharded

import sirtaki.torch as hvd
from sirtaki.native import core
from sirtaki.torch import captured
from sirtaki.torch.gradients import buckets, direct
from sirtaki.torch.ops.tensors import DTYPE_NUMBERS


class NoStream:
    def wait_stream(self, other: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass


class NoGraph:
    def replay(self) -> None:
        pass


class Communicator:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def allreduce(self, tensors: list, *how: float) -> None:
        self.calls.append(len(tensors))
        self.dtypes = ({tensor[2] for tensor in tensors}, how[3])  # of the tensors, and on the wire

    def check(self) -> None:
        pass


class NoEvent:
    def record(self, stream: object) -> None:
        pass


class EngineCommunicator(Communicator):
    """NCCL's part by the engine, in host memory."""

    def allreduce(self, tensors: list, op: int, prescale: float, postscale: float, wire: int) -> None:
        self.calls.append("allreduce")
        core.submit(core.VERBS["allreduce"], f"allreduce.{len(self.calls)}", tensors, op=op).wait()

    def reducescatter(self, tensor: tuple, op: int, prescale: float, postscale: float) -> None:
        self._submit("reducescatter", tensor, 1 / hvd.size(), op=op, prescale=prescale, postscale=postscale)

    def allgather(self, tensor: tuple) -> None:
        address, out, dtype, (elements,), device = tensor
        self._submit("allgather", (address, out, dtype, (elements // hvd.size(),), device), hvd.size())

    def _submit(self, verb: str, tensor: tuple, factor: float, **how: float) -> None:
        self.calls.append(verb)
        room = int(tensor[3][0] * 4 * factor)
        core.submit(core.VERBS[verb], f"{verb}.{len(self.calls)}", [tensor], rooms=[room], **how).wait()


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", NoEvent)
    for name in ("current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *a, **k: NoStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda *a, **k: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)


@ranks(2)
def test_ranks_agree_on_a_captured_step(rank_count, no_cuda, monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", {"cpu": 40})  # one for each layer
    torch.manual_seed(4)
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, layers.named_parameters())
    x = torch.ones(2, 3) + hvd.rank()

    def train(order: tuple[int, int]) -> torch.Tensor:
        """Backward comes to the layer first that was used last."""
        optimizer.zero_grad()
        loss = sum(layers[number](x).square().sum() for number in order)
        loss.backward()
        optimizer.step()
        return loss

    def capture(step) -> tuple[captured.CapturedStep, Communicator]:
        made, communicator = captured.CapturedStep(step, (x,), [optimizer]), Communicator()
        made._reduction = direct.DirectReduction(communicator, NoStream())
        made._record(3)
        return made, communicator

    step, communicator = capture(lambda x: train((0, 1)))
    assert communicator.calls == [4, 4]  # the step before the graph, and the one that is recorded
    assert step(x).requires_grad

    with pytest.raises(RuntimeError, match=r"rank 1 reduces other gradients, or in another order.*1\.bias.*0\.bias"):
        capture(lambda x: train((0, 1) if hvd.rank() == 0 else (1, 0)))

    norm = hvd.SyncBatchNorm(3)

    def normalizes(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = norm(layers[0](x) + layers[1](x)).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    made, communicator = capture(normalizes)
    assert communicator.calls == [1, 1, 4] * 2  # the batch's sums, their gradients, those of the layers
    assert [call.split(".")[0] for call in made._calls[:2]] == ["sync_batch_norm"] * 2

    steps = []

    def changes_its_mind(x: torch.Tensor) -> None:
        steps.append(x)
        train((0, 1) if len(steps) < 3 else (1, 0))

    own = r"'allreduce\.(?:optimizer\d+\.)?"  # numbered if an earlier optimizer has the same names
    with pytest.raises(RuntimeError, match=f"the step reduces {own}0.*before the capture reduced {own}1"):
        capture(changes_its_mind)
    hvd.barrier()


@ranks(2)
def test_a_captured_step_casts_on_the_way(rank_count, no_cuda):
    """Where NCCL's plane has kernels, it casts what travels as 16 bits; elsewhere torch does so before."""
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters(), compression=hvd.Compression.bf16)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()

    for casts, own in ((True, torch.float32), (False, torch.bfloat16)):
        made, communicator = captured.CapturedStep(step, (torch.ones(2, 3),), [optimizer]), Communicator()
        made._reduction = direct.DirectReduction(communicator, NoStream(), casts)
        made._record(3)
        wire = DTYPE_NUMBERS[torch.bfloat16] if casts else direct.OWN_DTYPE
        assert communicator.dtypes == ({DTYPE_NUMBERS[own]}, wire)
    hvd.barrier()


@ranks(2, 3)
def test_a_captured_step_with_a_sharded_optimizer(rank_count, no_cuda, monkeypatch):
    """Gradients are scattered in backward, and updated pieces gathered in the step; the results are those of eager
    steps.
    """
    monkeypatch.setattr(buckets, "BUCKET_BYTES", {"cpu": 2000})
    for free, clips in ((False, False), (True, True)):
        model, expected = SmallNet(), SmallNet()
        model.never.requires_grad_(False)
        x = data(0)
        optimizer = sharded(model, free_gradients=free)

        def step(x: torch.Tensor, model=model, optimizer=optimizer, clips=clips) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if clips:
                optimizer.clip_grad_norm(1e9)
            optimizer.step()
            return loss

        made, communicator = captured.CapturedStep(step, (x,), [optimizer]), EngineCommunicator()
        made._reduction = direct.DirectReduction(communicator, NoStream())
        made._record(3)
        count = len(optimizer._distributed.reducer.buckets)
        assert (
            count > 2
            and communicator.calls == (["reducescatter"] * count + ["allreduce"] * clips + ["allgather"] * count) * 2
        )
        reference = distributed(expected)
        for _ in range(4):  # two by the engine, one before the graph, and the one that is recorded
            step(x, expected, reference, False)
        check_same_bits(model, expected)

        hvd.barrier()
