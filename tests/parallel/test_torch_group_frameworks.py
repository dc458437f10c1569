"""Lightning and Accelerate train over Sirtaki, where they are installed."""

import sys

import jobs
import pytest

DATA = """import torch, sirtaki.torch, torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
images = (images / 16).float()
train = DataLoader(TensorDataset(images[:1437], labels[:1437]), 16, shuffle=True)
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""
JUDGED = """
right = (net(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
assert dist.get_backend() == "sirtaki" and dist.get_world_size() == 2
assert right > 0.88, right
everywhere = [torch.empty_like(net[0].weight) for _ in range(2)]
dist.all_gather(everywhere, net[0].weight)
assert torch.equal(*everywhere)
print("trained\\n", end="", flush=True)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.strategies import DDPStrategy

class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="sirtaki"), max_epochs=8, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Digits(), train)
"""
ACCELERATE = """
dist.init_process_group("sirtaki")
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model, optimizer, train = accelerator.prepare(net, optimizer, train)
for epoch in range(8):
    for batch, wanted in train:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(batch), wanted))
        optimizer.step()
"""


@pytest.mark.long
@pytest.mark.parametrize(("package", "program"), [("lightning", LIGHTNING), ("accelerate", ACCELERATE)])
def test_trains_the_digits(package: str, program: str) -> None:
    pytest.importorskip(package)
    ended = jobs.run_script(2, DATA + program + JUDGED, 200, {"PYTHONPATH": ":".join(filter(None, sys.path))})
    assert ended.code == 0 and ended.output.count("trained\n") == 2, ended.output
